// What is chosen, and who wants to know. A token is a place in the image from 0 to 1, or null for CLS, so that
// models with other patches understand it too.

const calm = window.matchMedia("(prefers-reduced-motion: reduce)");

function createState(initial) {
  const listeners = [];
  const state = { ...initial };
  let pending = null;
  function flush() {
    const changed = pending;
    pending = null;
    for (const listener of listeners) listener(changed);
  }
  return {
    get: () => state,
    // Tell all listeners once, before the next frame, whatever was changed meanwhile.
    set(changes) {
      const news = Object.keys(changes).filter((key) => state[key] !== changes[key]);
      if (!news.length) return;
      Object.assign(state, changes);
      if (pending === null) {
        pending = new Set();
        requestAnimationFrame(flush);
      }
      news.forEach((key) => pending.add(key));
    },
    listen: (listener) => listeners.push(listener),
    forget: () => listeners.splice(0),
  };
}

// Index of the token at a place: CLS is 0, the patches follow row by row after all tokens that are none. In a model
// without CLS the patch in the middle stands for it.
function tokenAt(place, { grid: [rows, columns], prefix, cls }) {
  if (place === null && cls) return 0;
  const { x, y } = place ?? { x: 0.5, y: 0.5 };
  const column = clamp(Math.floor(x * columns), 0, columns - 1);
  const row = clamp(Math.floor(y * rows), 0, rows - 1);
  return prefix + row * columns + column;
}

// The middle of a token's patch; CLS has none.
function placeOf(token, { grid: [rows, columns], prefix }) {
  if (token < prefix) return null;
  const patch = token - prefix;
  return { x: ((patch % columns) + 0.5) / columns, y: (Math.floor(patch / columns) + 0.5) / rows };
}

function tokenName(token, { grid: [, columns], prefix }) {
  if (token < prefix) return "CLS";
  return `row ${Math.floor((token - prefix) / columns) + 1}, column ${((token - prefix) % columns) + 1}`;
}

// The token that is shown: the one pointed at, else the one kept.
const shownPlace = ({ token, hover }) => (hover === undefined ? token : hover);
const shownToken = (state, view) => tokenAt(shownPlace(state), view);
// The layer of a model that the slider stands for; a shallower model stays at its last one.
const layerOf = (state, view) => Math.min(state.layer, view.layers.length - 1);
const headOf = (state, view) => Math.min(state.head, view.heads - 1);
