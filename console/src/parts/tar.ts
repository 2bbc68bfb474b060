// Archives with files in them, as the API carries the files of pods.

const block = 512

function header(name: Uint8Array, size: number, kind: string): Uint8Array {
  const out = new Uint8Array(block)
  const encode = new TextEncoder()
  const put = (text: string, at: number) => out.set(encode.encode(text), at)
  out.set(name.subarray(0, 100), 0)
  put('0000644\0', 100)
  put('0000000\0', 108)
  put('0000000\0', 116)
  put(`${size.toString(8).padStart(11, '0')}\0`, 124)
  put(`${Math.floor(Date.now() / 1000).toString(8).padStart(11, '0')}\0`, 136)
  put('        ', 148)
  put(kind, 156)
  put('ustar\x0000', 257)
  put(`${out.reduce((n, b) => n + b, 0).toString(8).padStart(6, '0')}\0 `, 148)
  return out
}

const padding = (size: number) => new Uint8Array((block - (size % block)) % block)

/** Packs files, of at most 8 GB each, by their names. */
export function pack(files: File[]): Blob {
  const parts: BlobPart[] = []
  for (const f of files) {
    const name = new TextEncoder().encode(f.name)
    if (name.length > 100) { // the long name has an entry of its own before
      const text = (n: number): string => `${n} path=${f.name}\n`
      let length = name.length + 7
      while (new TextEncoder().encode(text(length)).length !== length) length++
      const record = new TextEncoder().encode(text(length))
      parts.push(header(new TextEncoder().encode('name'), record.length, 'x') as BlobPart, record as BlobPart, padding(record.length) as BlobPart)
    }
    parts.push(header(name, f.size, '0') as BlobPart, f, padding(f.size) as BlobPart)
  }
  parts.push(new Uint8Array(2 * block))
  return new Blob(parts, { type: 'application/x-tar' })
}

/** Returns what the first plain file of an archive holds. */
export async function first(tar: Blob): Promise<Blob> {
  for (let at = 0; at + block <= tar.size;) {
    const head = new Uint8Array(await tar.slice(at, at + block).arrayBuffer())
    const text = new TextDecoder().decode(head.subarray(124, 136)).replace(/[\0 ]+$/, '')
    // A first byte of 0x80 says that the size is a number in base 256.
    const size = head[124]! & 0x80 ? [...head.subarray(125, 136)].reduce((n, b) => n * 256 + b, 0) : parseInt(text, 8)
    const kind = head[156]
    if (!Number.isFinite(size)) break
    if (kind === 0x30 || kind === 0) return tar.slice(at + block, at + block + size)
    at += block + Math.ceil(size / block) * block
  }
  throw new Error('The answer holds no plain file.')
}
