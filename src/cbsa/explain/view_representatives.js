// Representatives: regions of the image, what one gathers, and how the contraction moves all of them.

function createRepresentativesView(column, view, state, page) {
  const figure = (name, label) => {
    const canvas = el("canvas", { class: "stage", role: "img", "aria-label": label });
    const caption = el("figcaption", { class: "caption" });
    canvas.style.aspectRatio = `${view.grid[1]} / ${view.grid[0]}`;
    return { canvas, caption, box: el("figure", { class: name }, canvas, caption) };
  };
  const regions = figure("regions", "The image, each patch coloured by the representative that gathers it most");
  const gathered = figure("gathered", "What the chosen representative gathers");
  const moves = figure("moves", "Representatives before and after contraction, on two principal directions");
  const chooser = el("input", { type: "range", min: 1, value: 1, "aria-label": "Representative" });
  const chosenText = el("span");
  const choice = el("label", { class: "slider" }, chosenText, chooser);
  const body = el("div", { class: "triple" }, regions.box, gathered.box, moves.box);
  const none = el("p", { class: "placeholder" });
  column.append(none, body);
  gathered.box.append(choice);
  regions.canvas.style.cursor = moves.canvas.style.cursor = "pointer";

  // What is drawn follows from layer and head alone, but for the choice: kept until these change.
  let kept = null;
  function facts() {
    const current = state.get();
    const [l, head] = [layerOf(current, view), Math.max(0, headOf(current, view))];
    if (kept?.layer === l && kept.head === head) return kept;
    const layer = view.layers[l];
    const m = layer.weights.shape[1];
    const points = pointsOf(layer.points, head, m);
    kept = { layer: l, head, m, points, region: regionsOf(layer.weights, head), colours: coloursOf(points) };
    return kept;
  }
  const chosen = ({ region, m }) => {
    const current = state.get();
    return current.representative === null ? region[shownToken(current, view)] : Math.min(current.representative, m - 1);
  };

  chooser.addEventListener("input", () => state.set({ representative: Number(chooser.value) - 1 }));
  regions.canvas.addEventListener("click", (event) => {
    state.set({ representative: facts().region[view.prefix + patchUnder(event, regions.canvas, view.grid)] });
  });
  moves.canvas.addEventListener("click", (event) => {
    const box = moves.canvas.getBoundingClientRect();
    const { points } = facts();
    const place = placing(points, box.width, box.height);
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const distance = (point) => Math.hypot(place(point)[0] - x, place(point)[1] - y);
    const distances = points.map((ends) => Math.min(...ends.map(distance)));
    state.set({ representative: distances.indexOf(Math.min(...distances)) });
  });

  function draw() {
    const current = state.get();
    const layer = view.layers[layerOf(current, view)];
    const has = layer.kind === "extraction";
    body.hidden = !has;
    none.hidden = has;
    if (!has) {
      none.textContent = `Layer ${layerOf(current, view) + 1} is ${layer.attention}, which has no representatives` +
        (layer.attention === "MSSA" ? ": every token stands for itself." : ".");
      return;
    }
    const known = facts();
    const r = chosen(known);
    drawRegions(known, r);
    drawGathered(layer, known, r);
    drawMoves(layer, known, r);
    chooser.max = known.m;
    chooser.value = r + 1;
    chosenText.textContent = `Representative ${r + 1} of ${known.m}`;
  }

  function drawRegions({ region, colours, layer, head }, r) {
    const { context, width, height } = prepare(regions.canvas);
    drawPicture(context, view.grey, width, height);
    const patches = region.subarray(view.prefix);
    const paint = patchCanvas(view.grid, (i) => [...colours[patches[i]], patches[i] === r ? 0.95 : 0.72]);
    drawSharp(context, paint, width, height);
    drawBorders(context, view.grid, (i) => patches[i], width, height, "rgb(0 0 0 / 55%)", 1);
    drawBorders(context, view.grid, (i) => patches[i] === r, width, height, "#fff", 2.5);
    const used = new Set(patches).size;
    const which = headOf(state.get(), view) < 0 ? `head ${head + 1} (choose another above)` : `head ${head + 1}`;
    regions.caption.textContent = `Layer ${layer + 1}, ${which}: ${used} of ${colours.length} representatives ` +
      "gather some patch most. Like colours, like representatives.";
  }

  function drawGathered(layer, { head }, r) {
    const weights = gatheredBy(layer.weights, head, r);
    const patches = weights.subarray(view.prefix);
    const { context, width, height } = prepare(gathered.canvas);
    drawHeat(context, view, patches, page.heat, width, height);
    gathered.caption.textContent = `Its weights over the tokens, up to ${percent(largestOf(patches))} a patch` +
      (view.cls ? `; ${percent(weights[0])} on CLS.` : ".");
  }

  function drawMoves(layer, { points, colours, head }, r) {
    const { context, width, height } = prepare(moves.canvas);
    const place = placing(points, width, height);
    drawAxes(context, place([0, 0]), width, height);
    const paint = (i, strong) => {
      const [before, after] = points[i].map(place);
      drawArrow(context, before, after, css(colours[i]), strong);
    };
    points.forEach((_, i) => { if (i !== r) paint(i, false); });
    paint(r, true);
    const { variance, before, after } = layer.representatives;
    moves.caption.textContent = layer.attention === "Agent"
      ? "Agent attention does not contract: its representatives stay where they are."
      : `Hollow: extracted. Full: contracted. Coding rate ${before[head].toFixed(1)} → ${after[head].toFixed(1)} nats; ` +
        `the plane holds ${percent(variance[head])} of the variance.`;
  }
  return { draw, needs: ["token", "hover", "layer", "head", "stretched", "representative", "theme", "size"] };
}

// Places of the representatives of one head: m pairs of extracted and contracted.
function pointsOf(array, head, m) {
  const at = (row) => [array[2 * (2 * m * head + row)], array[2 * (2 * m * head + row) + 1]];
  return Array.from({ length: m }, (_, r) => [at(r), at(m + r)]);
}

// A colour for each representative by where it was extracted; few that lie far off do not fade the others.
function coloursOf(points) {
  const reach = (axis) => quantile(points.map(([before]) => Math.abs(before[axis])), 0.85) || 1;
  const [x, y] = [reach(0), reach(1)];
  return points.map(([[a, b]]) => placeColour(a / x, b / y, (a / x + b / y) / 3));
}

// From the plane to the canvas, the same scale on both axes.
function placing(points, width, height) {
  const all = points.flat();
  const [xs, ys] = [all.map(([x]) => x), all.map(([, y]) => y)];
  const [left, right, low, high] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const scale = 0.86 / Math.max((right - left) / width, (high - low) / height, 1e-12);
  return ([x, y]) => [
    width / 2 + scale * (x - (left + right) / 2),
    height / 2 - scale * (y - (low + high) / 2),
  ];
}

function drawAxes(context, [x, y], width, height) {
  context.strokeStyle = themed("line");
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(0, y);
  context.lineTo(width, y);
  context.moveTo(x, 0);
  context.lineTo(x, height);
  context.stroke();
}

function drawArrow(context, [x0, y0], [x1, y1], colour, strong) {
  context.globalAlpha = strong ? 1 : 0.75;
  context.strokeStyle = context.fillStyle = strong ? themed("ink") : colour;
  context.lineWidth = strong ? 2.5 : 1.1;
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  context.stroke();
  context.fillStyle = themed("card");
  context.strokeStyle = colour;
  context.lineWidth = 1.6;
  dot(context, x0, y0, strong ? 5 : 3);
  context.stroke();
  context.fillStyle = colour;
  dot(context, x1, y1, strong ? 6 : 4);
  if (strong) {
    context.strokeStyle = themed("ink");
    context.stroke();
  }
  context.globalAlpha = 1;
}

function dot(context, x, y, radius) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fill();
}

// Lines between patches that differ in some respect.
function drawBorders(context, [rows, columns], of, width, height, colour, line) {
  const [w, h] = [width / columns, height / rows];
  context.beginPath();
  for (let i = 0; i < rows * columns; i++) {
    const [row, column] = [Math.floor(i / columns), i % columns];
    if (column + 1 < columns && of(i) !== of(i + 1)) {
      context.moveTo((column + 1) * w, row * h);
      context.lineTo((column + 1) * w, (row + 1) * h);
    }
    if (row + 1 < rows && of(i) !== of(i + columns)) {
      context.moveTo(column * w, (row + 1) * h);
      context.lineTo((column + 1) * w, (row + 1) * h);
    }
  }
  context.strokeStyle = colour;
  context.lineWidth = line;
  context.stroke();
}
