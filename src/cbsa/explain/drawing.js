// Drawing on canvases.

// Make a canvas as large as it is shown, in device pixels; returns its context in CSS pixels, and its size.
function prepare(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const [w, h] = [Math.max(1, Math.round(width * ratio)), Math.max(1, Math.round(height * ratio))];
  if (canvas.width !== w || canvas.height !== h) [canvas.width, canvas.height] = [w, h];
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

// A copy of a picture without its colours.
function greyOf(picture) {
  const canvas = el("canvas", { width: picture.naturalWidth, height: picture.naturalHeight });
  const context = canvas.getContext("2d");
  context.drawImage(picture, 0, 0);
  const image = context.getImageData(0, 0, canvas.width, canvas.height);
  for (let i = 0; i < image.data.length; i += 4) {
    const grey = 0.299 * image.data[i] + 0.587 * image.data[i + 1] + 0.114 * image.data[i + 2];
    image.data.fill(grey, i, i + 3);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// A canvas with one pixel a patch, coloured by a function that returns [r, g, b, opacity].
function patchCanvas([rows, columns], colourOf, canvas = el("canvas")) {
  [canvas.width, canvas.height] = [columns, rows];
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let i = 0; i < rows * columns; i++) {
    const [r, g, b, opacity = 1] = colourOf(i);
    image.data.set([r, g, b, Math.round(255 * opacity)], 4 * i);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

const largestOf = (map) => map.reduce((most, value) => Math.max(most, value), 0);

// Colours of a map from 0, or if stretched from its own least value, to its largest.
function heatOf(map, { table, stretched }, opacity = () => 1) {
  const most = largestOf(map) || 1;
  const least = stretched ? map.reduce((low, value) => Math.min(low, value), most) : 0;
  return (i) => {
    const share = clamp((map[i] - least) / (most - least || 1), 0, 1);
    const at = 3 * Math.round(255 * share);
    return [table[at], table[at + 1], table[at + 2], opacity(share)];
  };
}

function drawSharp(context, source, width, height) {
  context.imageSmoothingEnabled = false;
  context.drawImage(source, 0, 0, width, height);
  context.imageSmoothingEnabled = true;
}

// The picture, enlarged; small ones keep their pixels.
function drawPicture(context, source, width, height) {
  context.imageSmoothingEnabled = source.width > 48;
  context.drawImage(source, 0, 0, width, height);
  context.imageSmoothingEnabled = true;
}

// How much of the picture a map covers: the more the higher.
const covering = (share) => 0.15 + 0.67 * share;

// A map over a picture, which is grey below it.
function drawHeat(context, view, map, heat, width, height) {
  drawPicture(context, view.grey, width, height);
  context.fillStyle = "rgb(0 0 0 / 58%)"; // so that bright patches are bright by the map
  context.fillRect(0, 0, width, height);
  drawSharp(context, patchCanvas(view.grid, heatOf(map, heat, covering)), width, height);
}

// What the colours of a map stand for: a bar from the lowest value to the highest. Returns the element, and what
// writes the values of another map.
function createScale(heat) {
  const [low, high] = [el("span"), el("span")];
  const levels = Float64Array.from({ length: 256 }, (_, i) => i);
  const bar = patchCanvas([1, 256], heatOf(levels, { ...heat, stretched: false }, covering));
  bar.setAttribute("aria-hidden", "true");
  const box = el("div", { class: "scale" }, low, bar, high);
  const show = (map) => {
    box.hidden = map === null;
    if (map === null) return;
    low.textContent = heat.stretched ? percent(map.reduce((least, value) => Math.min(least, value))) : "0 %";
    high.textContent = percent(largestOf(map));
  };
  return { box, show };
}

// Lines between patches.
function drawGrid(context, [rows, columns], width, height) {
  context.beginPath();
  for (let i = 1; i < columns; i++) {
    context.moveTo((i * width) / columns, 0);
    context.lineTo((i * width) / columns, height);
  }
  for (let i = 1; i < rows; i++) {
    context.moveTo(0, (i * height) / rows);
    context.lineTo(width, (i * height) / rows);
  }
  context.lineWidth = 0.5;
  context.strokeStyle = "rgb(255 255 255 / 22%)";
  context.stroke();
}

// A frame around one patch that shows on any ground.
function framePatch(context, [rows, columns], patch, width, height) {
  const [w, h] = [width / columns, height / rows];
  const [x, y] = [(patch % columns) * w, Math.floor(patch / columns) * h];
  for (const [colour, line] of [["#000", 5], ["#fff", 3], ["#0b6bff", 1.5]]) {
    context.strokeStyle = colour;
    context.lineWidth = line;
    context.strokeRect(x, y, w, h);
  }
}

// Which patch lies under a pointer.
function patchUnder(event, element, [rows, columns]) {
  const box = element.getBoundingClientRect();
  const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
  const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
  return clamp(row, 0, rows - 1) * columns + clamp(column, 0, columns - 1);
}
