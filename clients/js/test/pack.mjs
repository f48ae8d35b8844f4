// Pack members as a bundle file: a ustar archive in one Zstandard frame of raw blocks.

const BLOCK = 100_000;

export function packTar(members) {
  const parts = [];
  for (const [name, content] of members) {
    const data = Buffer.from(content);
    const header = Buffer.alloc(512);
    header.write(name, 0);
    header.write("0000644\0" + "0000000\0".repeat(2), 100);
    header.write(data.length.toString(8).padStart(11, "0") + "\0", 124);
    header.write("00000000000\0" + " ".repeat(8) + "0", 136);
    header.write("ustar\x0000", 257);
    header.write(header.reduce((sum, byte) => sum + byte, 0).toString(8).padStart(6, "0") + "\0 ", 148);
    parts.push(header, data, Buffer.alloc((512 - (data.length % 512)) % 512));
  }
  return Buffer.concat([...parts, Buffer.alloc(1024)]);
}

export function packFrame(raw) {
  const parts = [Buffer.from([0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x58])];
  for (let at = 0; at < raw.length; at += BLOCK) {
    const piece = raw.subarray(at, at + BLOCK);
    const head = (piece.length << 3) | (at + BLOCK >= raw.length ? 1 : 0);
    parts.push(Buffer.from([head & 255, (head >> 8) & 255, head >> 16]), piece);
  }
  return new Uint8Array(Buffer.concat(parts));
}

export const packBundle = (members) => packFrame(packTar(members));
