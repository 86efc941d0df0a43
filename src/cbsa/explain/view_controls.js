// The bar that stays in sight: layer, play, head, token; and the colours of the page.

const SECONDS_PER_LAYER = 1.1;

function createControls(state, page) {
  const [slider, play, head, cls, stretch] = ["layer", "play", "head", "cls", "stretch"].map(byId);
  let timer = null;

  function stop() {
    clearInterval(timer);
    timer = null;
    show();
  }
  function toggle() {
    if (timer !== null) return stop();
    const last = page.depth - 1;
    if (state.get().layer >= last) state.set({ layer: 0 });
    timer = setInterval(() => {
      const { layer } = state.get();
      if (layer >= last) stop();
      else state.set({ layer: layer + 1 });
    }, 1000 * SECONDS_PER_LAYER);
    show();
  }
  function show() {
    const current = state.get();
    const view = page.views[current.model]; // on a narrow screen, the one in sight
    if (!view) return; // not read yet
    slider.max = page.depth;
    slider.value = current.layer + 1;
    slider.setAttribute("aria-valuetext", `Layer ${current.layer + 1} of ${page.depth}`);
    byId("layer-text").textContent = `Layer ${current.layer + 1} of ${page.depth}`;
    play.textContent = timer === null ? "▶" : "❚❚";
    play.setAttribute("aria-label", timer === null ? "Play the layers" : "Pause");
    head.value = current.head;
    const token = shownToken(current, view);
    byId("token-text").textContent = `Token: ${tokenName(token, view)}`;
    cls.hidden = !page.views.some((other) => other.cls);
    cls.setAttribute("aria-pressed", shownPlace(current) === null);
  }
  function listHeads() {
    const names = Array.from({ length: page.heads }, (_, i) => el("option", { value: i }, `${i + 1}`));
    head.replaceChildren(el("option", { value: -1 }, "mean"), ...names);
  }

  slider.addEventListener("input", () => {
    if (timer !== null) stop();
    state.set({ layer: Number(slider.value) - 1 });
  });
  play.addEventListener("click", toggle);
  head.addEventListener("change", () => state.set({ head: Number(head.value), representative: null }));
  cls.addEventListener("click", () => state.set({ token: null, hover: undefined, representative: null }));
  stretch.addEventListener("change", () => state.set({ stretched: stretch.checked }));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && timer !== null) stop();
  });
  return { show, listHeads, stop };
}

// Light, dark, or as the system has it.
function createTheme(onChange) {
  const button = byId("theme");
  const choices = [["auto", "◐ Auto", "as the system has them"], ["light", "☀ Light", "light"], ["dark", "☾ Dark", "dark"]];
  const kept = () => {
    try { return localStorage.getItem("cbsa-theme"); } catch { return null; }
  };
  let place = Math.max(0, choices.findIndex(([name]) => name === kept()));
  function apply() {
    const [name, text, spoken] = choices[place];
    if (name === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = name;
    button.textContent = text;
    button.setAttribute("aria-label", `Colours: ${spoken}`);
  }
  button.addEventListener("click", () => {
    place = (place + 1) % choices.length;
    apply();
    try { localStorage.setItem("cbsa-theme", choices[place][0]); } catch { /* a page from disk may keep nothing */ }
    onChange();
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onChange);
  apply();
}

// One of several buttons: thumbnails of images, names of models. Returns what marks the one chosen.
function createChoice(id, buttons, choose) {
  const group = byId(id);
  group.hidden = buttons.length < 2;
  group.replaceChildren(...buttons);
  buttons.forEach((button, i) => button.addEventListener("click", () => choose(i)));
  group.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const next = (buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length;
    buttons[next].focus();
    choose(next);
  });
  return (chosen) => buttons.forEach((button, i) => {
    button.setAttribute("aria-checked", i === chosen);
    button.tabIndex = i === chosen ? 0 : -1;
  });
}

const radio = (attributes, ...children) => el("button", { type: "button", role: "radio", ...attributes }, ...children);

function createPicker(images, choose) {
  const buttons = images.map(({ name, thumbnail }) => radio(
    { class: "thumb", "aria-label": name }, el("img", { src: thumbnail, alt: "" }), el("span", {}, name)));
  return createChoice("picker", buttons, choose);
}

// On a narrow screen one model is shown at a time, at the same place of the page: these buttons change it.
function createModelSwitch(models, choose) {
  document.body.dataset.models = models.length;
  return createChoice("models", models.map(({ name }) => radio({ class: "quiet" }, name)), choose);
}
