// Coding rates by layer, with the layer chosen marked, and below them by how much attention changes them.

const POINTS = [["input", "before attention", "blue"], ["attention", "after attention", "orange"], ["feed_forward", "after the feed-forward", "teal"]];
const [CHART_HEIGHT, LEFT, RIGHT, TOP, BOTTOM] = [340, 48, 10, 24, 40]; // CSS pixels
const [LINES_END, BARS_TOP, BARS_END] = [216, 248, CHART_HEIGHT - BOTTOM];

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
    const y = (value) => TOP + ((high - value) / (high - low)) * (LINES_END - TOP);
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
      x: x(layer) - 10, y: TOP - 8, width: 20, height: BARS_END - TOP + 16, rx: 6, class: "mark",
    }));
    const values = {};
    for (const [name, , colour] of POINTS) {
      values[name] = series(view, name, current);
      const points = values[name].map((value, l) => `${x(l).toFixed(1)},${y(value).toFixed(1)}`);
      parts.push(svg("polyline", { points: points.join(" "), class: `line ${colour}` }));
      values[name].forEach((value, l) => parts.push(
        svg("circle", { cx: x(l), cy: y(value), r: l === layer ? 5 : 3, class: `dot ${colour}` })));
    }
    const column = (width - LEFT - RIGHT) / depth;
    chart.replaceChildren(...parts, ...changeBars(changeOf(view, current), page.views.flatMap((other) => changeOf(other, current)), x, column));
    const [before, after, out] = POINTS.map(([name]) => values[name][layer].toFixed(1));
    const change = changeOf(view, current)[layer];
    const zeros = view.rates.sparsity[layer];
    const who = head < 0 ? "mean of heads" : `head ${head + 1}`;
    caption.textContent = `Layer ${layer + 1}, ${who}: ${before} → ${after} → ${out} nats. ` +
      `Attention ${change < 0 ? "lowers" : "raises"} it by ${sizeOf(change)}.` +
      (zeros === null ? "" : ` ${percent(zeros)} of the tokens’ entries are exactly 0 after ISTA.`) +
      (low > 0 ? " The upper axis does not start at 0." : "");
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

// What attention changes of the rate, by layer.
function changeOf(view, current) {
  const [before, after] = [series(view, "input", current), series(view, "attention", current)];
  return after.map((value, l) => value - before[l]);
}

function sizeOf(change) {
  const size = Math.abs(change);
  return size === 0 ? "0" : size < 1 ? size.toPrecision(2) : size.toFixed(size < 9.95 ? 1 : 0);
}
const signed = (change) => `${change > 0 ? "+" : change < 0 ? "−" : ""}${sizeOf(change)}`;

// A bar for each layer from 0, full where it hangs down; the scale is that of all models.
function changeBars(changes, all, x, column) {
  const [low, high] = [Math.min(0, ...all), Math.max(0, ...all)];
  const y = (value) => BARS_TOP + ((high - value) / (high - low || 1)) * (BARS_END - BARS_TOP);
  const label = (value) => svg("text", { x: LEFT - 8, y: y(value) + 4, class: "tick end" }, signed(value));
  const ends = [low, high].filter((value) => Math.abs(y(value) - y(0)) > 12);
  const width = Math.min(16, 0.6 * column);
  return [
    svg("text", { x: LEFT, y: BARS_TOP - 10, class: "tick" }, "what attention changes"),
    svg("line", { x1: LEFT, x2: x(changes.length - 1) + column / 2, y1: y(0), y2: y(0), class: "rule" }),
    label(0), ...ends.map(label),
    ...changes.map((value, l) => svg("rect", {
      x: x(l) - width / 2, y: y(Math.max(0, value)), width, height: Math.abs(y(value) - y(0)),
      class: value < 0 ? "bar down" : "bar",
    })),
  ];
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
