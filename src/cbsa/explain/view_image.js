// The image with its patches: the one place where a token is chosen.

function createImageView(column, view, state, page) {
  const [rows, columns] = view.grid;
  const canvas = el("canvas", {
    class: "stage",
    tabindex: 0,
    role: "application",
    "aria-roledescription": "patch grid",
    "aria-label": `${view.image.name} in ${rows} by ${columns} patches, seen by ${view.model.name}. ` +
      "Arrow keys choose a patch, C the class token, plus and minus the layer.",
  });
  canvas.style.aspectRatio = `${columns} / ${rows}`;
  const caption = el("p", { class: "caption" });
  const bare = el("input", { type: "checkbox" });
  const toggle = el("label", { class: "check" }, bare, " image alone");
  column.append(el("div", { class: "stage-box" }, canvas, el("div", { class: "under" }, caption, toggle)));

  const keep = (token) => state.set({ token: placeOf(token, view.grid), hover: undefined, representative: null });
  const point = (event) => state.set({
    hover: placeOf(1 + patchUnder(event, canvas, view.grid), view.grid),
    representative: null,
  });
  canvas.addEventListener("pointermove", (event) => { if (event.pointerType === "mouse") point(event); });
  canvas.addEventListener("pointerleave", () => state.set({ hover: undefined }));
  canvas.addEventListener("click", (event) => keep(1 + patchUnder(event, canvas, view.grid)));
  canvas.addEventListener("keydown", (event) => {
    const token = tokenAt(state.get().token, view.grid);
    const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns };
    const layers = { "+": 1, "=": 1, "-": -1 };
    if (event.key in moves) keep(movedToken(token, moves[event.key], view.grid));
    else if (event.key.toLowerCase() === "c" && !event.ctrlKey && !event.metaKey) keep(0);
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
    if (map && !bare.checked) drawHeat(context, view, map, page.heat, width, height);
    else drawPicture(context, view.picture, width, height);
    if (width / columns > 5) drawGrid(context, view.grid, width, height);
    if (token > 0) framePatch(context, view.grid, token - 1, width, height);
    caption.textContent = describeMap(view, layer, head, token, map);
  }
  return { draw, needs: ["token", "hover", "layer", "head", "stretched", "theme", "size"] };
}

// The token one step away; beyond the border, the same.
function movedToken(token, step, [rows, columns]) {
  if (token === 0) return 1 + Math.floor(rows / 2) * columns + Math.floor(columns / 2);
  const patch = token - 1;
  if (Math.abs(step) === 1 && Math.floor((patch + step) / columns) !== Math.floor(patch / columns)) return token;
  const moved = patch + step;
  return moved < 0 || moved >= rows * columns ? token : moved + 1;
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
  const name = token === 0 ? "CLS" : "this patch";
  return `${where}: of what ${name} sees, the brightest patch holds ${percent(most)}, ${even.toFixed(1)}× an even share.`;
}
