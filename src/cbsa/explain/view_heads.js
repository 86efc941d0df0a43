// Every layer and head at once: small maps, one pixel a patch.

const NOTES = {
  extraction: "CBSA, CBSA* and Agent: a row of A Aᵀ, with A the weights by which the representatives gather the tokens (the paper’s estimate of the full attention matrix). A layer that broadcasts by other weights has these in the place of the first A.",
  softmax: "MSSA and MHSA: the row of their softmax.",
  kernel: "Linear attention: the row of its normalised kernel.",
  membership: "TSSA: the share of each patch in a head. A softmax over heads, not a map over tokens; it is the same for all tokens.",
  none: "Layers that only mix channels have no map over tokens.",
};
const WIDE = 640; // pixels from which layers run from left to right

function createHeadsView(column, view, state, page) {
  const heads = [-1, ...Array.from({ length: view.heads }, (_, i) => i)];
  const cells = view.layers.map((layer, l) => heads.map((head) => {
    const canvas = el("canvas", { "aria-hidden": "true" });
    const name = head < 0 ? "mean of heads" : `head ${head + 1}`;
    const button = el("button", {
      type: "button", class: "cell", tabindex: -1, "aria-label": `Layer ${l + 1}, ${layer.attention}, ${name}`,
      onclick: () => state.set({ layer: l, head, representative: null }),
    }, canvas);
    button.style.aspectRatio = `${view.grid[1]} / ${view.grid[0]}`;
    return { button, canvas };
  }));
  const grid = el("div", { class: "matrix", role: "group", "aria-label": `Maps of ${view.model.name} by layer and head` });
  const kinds = [...new Set(view.layers.map(({ kind }) => kind))];
  column.append(el("div", { class: "matrix-box" }, grid), ...kinds.map((kind) => el("p", { class: "caption" }, NOTES[kind])));

  const layerLabel = (l) => el("span", { class: "axis" }, `${l + 1}`, el("small", {}, view.layers[l].attention));
  const headLabel = (head) => el("span", { class: "axis" }, head < 0 ? "mean" : `head ${head + 1}`);
  let wide = null;
  let drawn = null; // what the canvases show
  function lay() {
    const now = grid.parentElement.clientWidth >= WIDE && view.layers.length > heads.length;
    if (now === wide) return;
    wide = now;
    const outer = wide ? view.layers.length : heads.length;
    grid.style.gridTemplateColumns = `max-content repeat(${outer}, minmax(${wide ? 2.4 : 2.8}rem, 1fr))`;
    grid.style.maxWidth = wide ? "none" : `${4.5 + 5.2 * outer}rem`;
    const layers = view.layers.map((_, l) => l);
    grid.replaceChildren(el("span"), ...(wide ? layers.map(layerLabel) : heads.map(headLabel)));
    if (wide) heads.forEach((head, h) => grid.append(headLabel(head), ...layers.map((l) => cells[l][h].button)));
    else layers.forEach((l) => grid.append(layerLabel(l), ...cells[l].map(({ button }) => button)));
  }
  grid.addEventListener("keydown", (event) => {
    const along = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!along) return;
    event.preventDefault();
    const [x, y] = along;
    const current = state.get();
    const layer = clamp(layerOf(current, view) + (wide ? x : y), 0, view.layers.length - 1);
    const head = clamp(headOf(current, view) + (wide ? y : x), -1, view.heads - 1);
    state.set({ layer, head, representative: null });
    cells[layer][head + 1].button.focus();
  });

  function draw() {
    lay();
    const current = state.get();
    const token = shownToken(current, view);
    const drawing = `${token} ${current.stretched}`;
    if (drawn !== drawing) {
      drawn = drawing;
      mapsOf(view, token).layers.forEach(({ heads: maps, mean }, l) => [mean, ...maps].forEach((map, h) => {
        const { canvas } = cells[l][h];
        if (map) patchCanvas(view.grid, heatOf(map, page.heat), canvas);
        else [canvas.width, canvas.height] = [1, 1];
      }));
    }
    const [layer, head] = [layerOf(current, view), headOf(current, view)];
    cells.forEach((row, l) => row.forEach(({ button }, h) => {
      const chosen = l === layer && h === head + 1;
      button.setAttribute("aria-pressed", chosen);
      button.tabIndex = chosen ? 0 : -1;
    }));
  }
  return { draw, needs: ["token", "hover", "layer", "head", "stretched", "size"] };
}
