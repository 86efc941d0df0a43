// Tokens through the layers: a plane of points that moves, and the same points as colours of the patches.

const MOVE_MS = 650;

function createTokensView(column, view, state, page) {
  const scatter = el("canvas", { class: "stage plane", role: "img" });
  const patches = el("canvas", { class: "stage", role: "img", "aria-label": "The patches, coloured by where their tokens lie" });
  patches.style.aspectRatio = `${view.grid[1]} / ${view.grid[0]}`;
  const [left, right] = [el("figcaption", { class: "caption" }), el("figcaption", { class: "caption" })];
  right.textContent = "Patches of like colour are alike to this layer.";
  column.append(el("div", { class: "double" }, el("figure", {}, scatter, left), el("figure", {}, patches, right)));
  for (const canvas of [scatter, patches]) canvas.style.cursor = "pointer";

  const { states } = view;
  const tokens = states.count;
  let shown = states.at(0); // coordinates as drawn, which run after those of the layer
  let target = null;
  let frame = null;

  function moveTo(layer) {
    const next = states.at(layer + 1);
    if (target === next) return draw(layer);
    const from = target === null ? states.at(layer) : shown;
    target = next;
    cancelAnimationFrame(frame);
    const begin = performance.now();
    const duration = calm.matches ? 0 : MOVE_MS;
    const step = (now) => {
      const t = duration ? clamp((now - begin) / duration, 0, 1) : 1;
      const eased = t * t * (3 - 2 * t);
      shown = from.map((value, i) => value + eased * (next[i] - value));
      draw(layer);
      if (t < 1) frame = requestAnimationFrame(step);
    };
    step(begin);
  }

  const place = (i, width, height) => {
    const scale = (0.46 * Math.min(width, height)) / states.reach;
    const inside = (value, size) => clamp(value, 5, size - 5);
    return [inside(width / 2 + scale * shown[3 * i], width), inside(height / 2 - scale * shown[3 * i + 1], height)];
  };

  function draw(layer) {
    const token = shownToken(state.get(), view);
    const { context, width, height } = prepare(scatter);
    drawAxes(context, [width / 2, height / 2], width, height);
    const colours = tokenColours(shown, tokens, view.prefix);
    const radius = tokens > 1500 ? 1.8 : tokens > 500 ? 2.6 : 4;
    for (let i = view.prefix; i < tokens; i++) {
      context.fillStyle = css(colours[i]);
      dot(context, ...place(i, width, height), radius);
    }
    const patch = token - view.prefix;
    if (view.cls) mark(context, place(0, width, height), token === 0, "CLS");
    if (patch >= 0) mark(context, place(token, width, height), true, "");
    const sheet = prepare(patches);
    drawSharp(sheet.context, patchCanvas(view.grid, (i) => colours[i + view.prefix]), sheet.width, sheet.height);
    if (patch >= 0) framePatch(sheet.context, view.grid, patch, sheet.width, sheet.height);
    const share = states.variance[layer + 1];
    left.textContent = `After layer ${layer + 1}: patches lie ${percent(states.spread[layer + 1])} of their length ` +
      `from their mean (${percent(states.spread[0])} before layer 1). The plane holds ${percent(share[0] + share[1])} ` +
      "of the variance.";
    scatter.setAttribute("aria-label", `Tokens of ${view.model.name} as points. ${left.textContent}`);
  }

  function mark(context, [x, y], chosen, text) {
    context.strokeStyle = context.fillStyle = themed("ink");
    context.lineWidth = 2;
    context.beginPath();
    if (text) context.rect(x - 4, y - 4, 8, 8);
    else context.arc(x, y, 7, 0, 2 * Math.PI);
    if (text && chosen) context.fill();
    context.stroke();
    context.font = "600 12px system-ui, sans-serif";
    if (text) context.fillText(text, clamp(x + 8, 0, scatter.clientWidth - 30), clamp(y - 6, 12, scatter.clientHeight - 4));
  }

  const keep = (token) => state.set({ token: placeOf(token, view), hover: undefined, representative: null });
  patches.addEventListener("click", (event) => keep(view.prefix + patchUnder(event, patches, view.grid)));
  scatter.addEventListener("click", (event) => {
    const box = scatter.getBoundingClientRect();
    let [nearest, least] = [0, Infinity];
    for (let i = 0; i < tokens; i++) {
      if (i < view.prefix && !(i === 0 && view.cls)) continue; // not drawn
      const [x, y] = place(i, box.width, box.height);
      const distance = Math.hypot(x + box.left - event.clientX, y + box.top - event.clientY);
      if (distance < least) [nearest, least] = [i, distance];
    }
    keep(nearest);
  });
  return { draw: () => moveTo(layerOf(state.get(), view)), needs: ["token", "hover", "layer", "theme", "size"] };
}

// Coordinates (tokens × 3) to colours; the plane gives hue and strength, the third direction lightness.
function tokenColours(points, tokens, prefix) {
  const reach = [0, 1, 2].map((axis) => {
    const sizes = Array.from({ length: tokens - prefix }, (_, i) => Math.abs(points[3 * (i + prefix) + axis]));
    return quantile(sizes, 0.95) || 1;
  });
  return Array.from({ length: tokens }, (_, i) =>
    placeColour(points[3 * i] / reach[0], points[3 * i + 1] / reach[1], points[3 * i + 2] / reach[2]));
}

// States as they are stored, and how far patches lie from the middle in any of them.
function readStates(buffer, { points, variance, spread }, prefix) {
  const values = valuesAt(buffer, points);
  const tokens = points.shape[1];
  const each = 3 * tokens;
  const at = (state) => values.subarray(state * each, (state + 1) * each);
  let reach = 1e-12;
  for (let i = 0; i < values.length; i++) {
    if (i % each >= 3 * prefix && i % 3 < 2) reach = Math.max(reach, Math.abs(values[i]));
  }
  return { at, count: tokens, variance, spread, reach };
}
