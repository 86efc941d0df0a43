// Elements from data. Text is only ever set as text, never parsed as markup.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const byId = (id) => document.getElementById(id);

// A number as a share in percent, with as many digits as it needs.
function percent(share) {
  const value = 100 * share;
  return `${value >= 9.95 ? value.toFixed(0) : value >= 0.095 ? value.toFixed(1) : value.toPrecision(1)} %`;
}

// The column of each model in a section, under the model's name where there are several.
function makeColumns(section, models) {
  const container = byId(section).querySelector(".columns");
  container.replaceChildren();
  container.dataset.count = models.length;
  return models.map((model, i) => {
    const heading = models.length > 1 ? el("h3", {}, model.name) : null;
    const column = el("div", { class: "column", "data-model": i }, heading);
    container.append(column);
    return column;
  });
}
