// The most probable classes.

function createPredictions(column, view) {
  const { predictions, model } = view;
  const rows = predictions.map(({ label, probability }) => {
    const bar = el("span", { class: "fill" });
    bar.style.width = `${100 * probability}%`;
    return el("li", {},
      el("span", { class: "label", title: label }, label),
      el("span", { class: "track", "aria-hidden": "true" }, bar),
      el("span", { class: "number" }, percent(probability)));
  });
  const card = el("div", { class: "card predictions" },
    el("h4", {}, "What the model says"),
    model.trained ? null : el("p", { class: "warning" }, "Random weights: this model was never trained."),
    rows.length ? el("ol", {}, ...rows) : el("p", { class: "caption" }, "This model has no classifier."));
  column.append(el("div", {}, card));
}
