// Puts the page together: reads the data of the image chosen, builds the views, and draws what changes.

const index = JSON.parse(byId("index").textContent);
const page = { heat: { table: heatTable(index.heat), stretched: false }, views: [], depth: 1, heads: 1 };
const guide = byId("guide"); // beside the image of a single model, below those of several
const state = createState({
  image: 0, model: 0, token: null, hover: undefined, layer: 0, head: -1, representative: null, unit: false, stretched: false, theme: 0, size: 0,
});

// One image in one model, with the arrays of its factors.
async function readView(image, number) {
  const stored = index.images[image].views[number];
  const buffer = await readBlock(image * index.models.length + number);
  const picture = new Image();
  picture.src = stored.picture;
  await picture.decode();
  const layers = stored.layers.map((layer) => {
    const arrays = {};
    for (const name of ["weights", "broadcast", "queries", "keys", "share"]) {
      if (layer[name]) arrays[name] = arrayAt(buffer, layer[name]);
    }
    if (layer.representatives) arrays.points = valuesAt(buffer, layer.representatives.points);
    return { ...layer, ...arrays };
  });
  return {
    ...stored, layers, picture, grey: greyOf(picture), states: readStates(buffer, stored.states, stored.prefix),
    image: index.images[image], model: index.models[number],
  };
}

let loading = 0;
async function show(image) {
  const mine = ++loading;
  byId("main").setAttribute("aria-busy", "true");
  const views = await Promise.all(index.models.map((_, number) => readView(image, number)));
  if (mine !== loading) return; // another image was chosen meanwhile
  page.views = views;
  page.depth = Math.max(...views.map((view) => view.layers.length));
  page.heads = Math.max(...views.map((view) => view.heads));
  state.forget();
  state.set({ image, hover: undefined, representative: null, layer: Math.min(state.get().layer, page.depth - 1) });
  build();
  byId("main").setAttribute("aria-busy", "false");
}

function build() {
  const makers = {
    look: createImageView,
    heads: createHeadsView,
    representatives: createRepresentativesView,
    tokens: createTokensView,
    rates: createRatesView,
  };
  const parts = [];
  for (const [section, create] of Object.entries(makers)) {
    makeColumns(section, index.models).forEach((column, i) => {
      parts.push(create(column, page.views[i], state, page));
      if (section === "look") createPredictions(column, page.views[i]);
    });
  }
  if (index.models.length === 1) document.querySelector("#look .column").lastElementChild.append(guide);
  const { image } = state.get();
  const names = index.models.map(({ name }) => name);
  byId("lead").textContent = `${index.images[image].name}, seen by ${names.join(" · ")}`;
  controls.listHeads();
  pick(image);
  showModel(state.get().model);
  controls.show();
  state.listen((changed) => {
    page.heat.stretched = state.get().stretched;
    controls.show();
    for (const part of parts) if (part.needs.some((name) => changed.has(name))) part.draw();
  });
  for (const part of parts) part.draw();
}

function listFacts() {
  const rows = index.models.map((model) => el("div", { class: "card" },
    el("h4", {}, model.name),
    el("dl", {},
      ...[
        ["architecture", model.architecture],
        ["weights", model.source],
        ["parameters", model.parameters.toLocaleString("en")],
        ["image as seen", `${model.size} × ${model.size} px, patches of ${[...new Set(model.patch)].join(" × ")} px`],
        ...(model.own_size.some((side) => side !== model.size)
          ? [["made for", `${model.own_size.join(" × ")} px; its position embedding was resampled`]] : []),
        ["classes", model.classes.toLocaleString("en")],
      ].flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]))));
  byId("facts").append(
    el("div", { class: "columns facts", "data-count": index.models.length }, ...rows),
    el("p", { class: "caption" },
      "Attention is computed here from small factors, never stored as N×N images: for CBSA the weights A of each " +
      "representative over the tokens, in 8 bits; for softmax attention the projected tokens, in 16 bits. " +
      "The page loads nothing and sends nothing."));
  byId("made").textContent = `Made with cbsa ${index.version}`;
}

const controls = createControls(state, page);
const pick = createPicker(index.images, (image) => {
  controls.stop();
  show(image).catch(report);
});
const markModel = createModelSwitch(index.models, (model) => {
  showModel(model);
  state.set({ model, size: state.get().size + 1 });
});
function showModel(model) {
  markModel(model);
  document.querySelectorAll(".column").forEach((column) => {
    column.classList.toggle("current", Number(column.dataset.model) === model);
  });
}
createTheme(() => state.set({ theme: state.get().theme + 1 }));
let resizing = null;
window.addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => state.set({ size: state.get().size + 1 }), 80);
});
listFacts();

function report(error) {
  byId("lead").textContent = `This browser cannot read the data of the page (${error.message}): please open it in a current one.`;
}

// For the console of those who want the numbers: rows of attention over all tokens, CLS first, patches last.
window.cbsaExplorer = {
  ready: show(0).catch(report),
  get views() { return page.views; },
  row: (model, layer, head, token) => Array.from(rowOf(page.views[model].layers[layer], head, token) ?? []),
  state: () => ({ ...state.get() }),
};
