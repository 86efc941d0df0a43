// Blocks of the page to numbers: base64, deflated bytes, quantised levels with scales (see pack.py).

async function readBlock(number) {
  const text = document.getElementById(`block-${number}`).textContent;
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = binary.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

// (level / 255)⁴, the share of its row's largest weight that an 8-bit level stands for.
const SHARES = Float64Array.from({ length: 256 }, (_, level) => (level / 255) ** 4);

// An array of the block: integer levels, and one scale for each row or matrix of them.
function arrayAt(buffer, entry) {
  const count = entry.shape.reduce((product, size) => product * size, 1);
  const Levels = entry.form === "weights" ? Uint8Array : Int16Array;
  const levels = new Levels(buffer, entry.levels, count);
  return { levels, shape: entry.shape, scale: new Float32Array(buffer, entry.scale, entry.scales) };
}

// All values of an array of "numbers", scaled.
function valuesAt(buffer, entry) {
  const { levels, scale } = arrayAt(buffer, entry);
  const each = levels.length / scale.length;
  return Float32Array.from(levels, (level, i) => (level / 32767) * scale[Math.floor(i / each)]);
}
