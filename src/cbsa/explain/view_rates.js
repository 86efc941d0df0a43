// Coding rates by layer, with the layer chosen marked.

const POINTS = [["input", "before attention", "blue"], ["attention", "after attention", "orange"], ["feed_forward", "after the feed-forward", "teal"]];
const [CHART_HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [260, 48, 10, 24, 40]; // CSS pixels

function createRatesView(column, view, state, page) {
  const unit = el("input", { type: "checkbox" });
  const chart = svg("svg", { height: CHART_HEIGHT, class: "chart", role: "img" });
  const keys = POINTS.map(([, name, colour]) => el("span", { class: `key ${colour}` }, name));
  const caption = el("p", { class: "caption", role: "status" });
  column.append(el("div", { class: "card" },
    el("div", { class: "legend" }, ...keys),
    chart,
    caption,
    el("label", { class: "check" }, unit, " tokens scaled to unit length: angles alone")));
  unit.addEventListener("change", () => state.set({ unit: unit.checked }));

  chart.addEventListener("click", (event) => {
    const box = chart.getBoundingClientRect();
    const share = (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT);
    const layer = Math.floor(share * view.layers.length);
    state.set({ layer: clamp(layer, 0, view.layers.length - 1) });
  });

  function draw() {
    const current = state.get();
    unit.checked = current.unit;
    const [layer, head, depth] = [layerOf(current, view), headOf(current, view), view.layers.length];
    const ticks = niceTicks(page.views.flatMap((other) => POINTS.flatMap(([name]) => series(other, name, current))));
    const [low, high] = [ticks[0], ticks.at(-1)];
    const width = Math.max(240, chart.clientWidth);
    const x = (l) => LEFT + ((l + 0.5) / depth) * (width - LEFT - RIGHT);
    const y = (value) => TOP + ((high - value) / (high - low)) * (CHART_HEIGHT - TOP - BOTTOM);
    const parts = [svg("text", { x: LEFT - 8, y: 12, class: "tick end" }, "nats")];
    for (const value of ticks) {
      parts.push(svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value), class: "rule" }));
      parts.push(svg("text", { x: LEFT - 8, y: y(value) + 4, class: "tick end" }, `${Number(value.toPrecision(6))}`));
    }
    for (let l = 0; l < depth; l += Math.ceil(depth / 12)) {
      parts.push(svg("text", { x: x(l), y: CHART_HEIGHT - 20, class: "tick middle" }, `${l + 1}`));
    }
    parts.push(svg("text", { x: (LEFT + width - RIGHT) / 2, y: CHART_HEIGHT - 4, class: "tick middle" }, "layer"));
    parts.push(svg("rect", {
      x: x(layer) - 10, y: TOP - 8, width: 20, height: CHART_HEIGHT - TOP - BOTTOM + 16, rx: 6, class: "mark",
    }));
    const values = {};
    for (const [name, , colour] of POINTS) {
      values[name] = series(view, name, current);
      const points = values[name].map((value, l) => `${x(l).toFixed(1)},${y(value).toFixed(1)}`);
      parts.push(svg("polyline", { points: points.join(" "), class: `line ${colour}` }));
      values[name].forEach((value, l) => parts.push(
        svg("circle", { cx: x(l), cy: y(value), r: l === layer ? 5 : 3, class: `dot ${colour}` })));
    }
    chart.replaceChildren(...parts);
    const [before, after, out] = POINTS.map(([name]) => values[name][layer].toFixed(1));
    const zeros = view.rates.sparsity[layer];
    const who = head < 0 ? "mean of heads" : `head ${head + 1}`;
    caption.textContent = `Layer ${layer + 1}, ${who}: ${before} → ${after} → ${out} nats` +
      (zeros === null ? "." : `; ${percent(zeros)} of the tokens’ entries are exactly 0 after ISTA.`) +
      (low > 0 ? " The axis does not start at 0." : "");
    chart.setAttribute("aria-label", `Coding rates of ${view.model.name} by layer. ${caption.textContent}`);
  }
  return { draw, needs: ["layer", "head", "unit", "theme", "size"] };
}

// One point of the block by layer, in the head chosen.
function series(view, name, { head, unit }) {
  const rates = view.rates[unit ? `normalized_${name}` : name];
  const chosen = Math.min(head, view.heads - 1);
  return rates.map((heads) => (chosen < 0 ? heads.reduce((sum, v) => sum + v, 0) / heads.length : heads[chosen]));
}

// Round numbers a constant step apart that hold all values between the first and the last.
function niceTicks(values) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const rough = Math.max(most - least, 1e-3 * Math.abs(most), 1e-6) / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].find((s) => s * power >= rough) * power;
  const first = Math.floor(least / step);
  return Array.from({ length: Math.ceil(most / step) - first + 1 }, (_, i) => (first + i) * step);
}
