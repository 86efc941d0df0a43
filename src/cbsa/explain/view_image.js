// The image with its patches: the one place where a token is chosen.

function createImageView(column, view, state, page) {
  const [rows, columns] = view.grid;
  const canvas = el("canvas", {
    class: "stage",
    tabindex: 0,
    role: "application",
    "aria-roledescription": "patch grid",
    "aria-label": `${view.image.name} in ${rows} by ${columns} patches, seen by ${view.model.name}. ` +
      `Arrow keys choose a patch, ${view.cls ? "C the class token, " : ""}plus and minus the layer.`,
  });
  canvas.style.aspectRatio = `${columns} / ${rows}`;
  const caption = el("p", { class: "caption" });
  const bare = el("input", { type: "checkbox" });
  const toggle = el("label", { class: "check" }, bare, " image alone");
  const scale = createScale(page.heat);
  const under = el("div", { class: "under" }, scale.box, caption, otherTokens(view), toggle);
  column.append(el("div", { class: "stage-box" }, canvas, under));

  const keep = (place) => state.set({ token: place, hover: undefined, representative: null });
  const placeUnder = (event) => placeOf(view.prefix + patchUnder(event, canvas, view.grid), view);
  const point = (event) => state.set({ hover: placeUnder(event), representative: null });
  canvas.addEventListener("pointermove", (event) => { if (event.pointerType === "mouse") point(event); });
  canvas.addEventListener("pointerleave", () => state.set({ hover: undefined }));
  canvas.addEventListener("click", (event) => keep(placeUnder(event)));
  canvas.addEventListener("keydown", (event) => {
    const token = tokenAt(state.get().token, view);
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    const layers = { "+": 1, "=": 1, "-": -1 };
    if (event.key in moves) keep(placeOf(movedToken(token, moves[event.key], view), view));
    else if (event.key.toLowerCase() === "c" && !event.ctrlKey && !event.metaKey) keep(null);
    else if (event.key in layers) {
      state.set({ layer: clamp(state.get().layer + layers[event.key], 0, page.depth - 1) });
    } else return;
    event.preventDefault();
  });
  bare.addEventListener("change", () => draw());

  function draw() {
    const current = state.get();
    const token = shownToken(current, view);
    const [layer, head] = [layerOf(current, view), headOf(current, view)];
    const map = chosenMap(view, token, layer, head);
    const { context, width, height } = prepare(canvas);
    scale.show(bare.checked ? null : map);
    if (map && !bare.checked) drawHeat(context, view, map, page.heat, width, height);
    else drawPicture(context, view.picture, width, height);
    if (width / columns > 5) drawGrid(context, view.grid, width, height);
    if (token >= view.prefix) framePatch(context, view.grid, token - view.prefix, width, height);
    caption.textContent = describeMap(view, layer, head, token, map);
  }
  return { draw, needs: ["token", "hover", "layer", "head", "stretched", "theme", "size"] };
}

// What to know of a model whose tokens are not CLS and the patches alone.
function otherTokens({ prefix, cls }) {
  const others = prefix - (cls ? 1 : 0);
  const notes = [
    cls ? "" : "This model has no CLS: where CLS is chosen, it shows its middle patch.",
    others ? `Its ${others} further tokens without a patch (registers, distillation) take part in the attention, ` +
      "and are in no map." : "",
  ].filter(Boolean);
  return notes.length ? el("p", { class: "caption" }, notes.join(" ")) : null;
}

// The token one step away; beyond the border, the same.
function movedToken(token, step, { grid: [rows, columns], prefix }) {
  if (token < prefix) return prefix + Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  const patch = token - prefix;
  const sideways = step === 1 || step === -1;
  if (sideways && Math.floor((patch + step) / columns) !== Math.floor(patch / columns)) return token;
  const moved = patch + step;
  return moved < 0 || moved >= rows * columns ? token : moved + prefix;
}

function describeMap(view, layer, head, token, map) {
  const { kind, attention } = view.layers[layer];
  const where = `Layer ${layer + 1} (${attention}), ${head < 0 ? "mean of heads" : `head ${head + 1}`}`;
  if (map === null) {
    return kind === "membership"
      ? `${where}: a token’s shares in the heads add up to 1. Choose a head to see its share of each patch.`
      : `${where}: it mixes channels, through no map over tokens.`;
  }
  const most = largestOf(map);
  if (kind === "membership") {
    return `${where}: the share of each patch in the head, up to ${percent(most)}. It is not attention over ` +
      "tokens, and does not depend on the token chosen.";
  }
  const even = most * map.length;
  const name = token < view.prefix ? "CLS" : "this patch";
  return `${where}: of what ${name} sees, the brightest patch holds ${percent(most)}, ${even.toFixed(1)}× an even share.`;
}
