export const usd = (n: number, digits = 2): string => `${n < 0 ? '−' : ''}$${Math.abs(n).toLocaleString('en-US', { minimumFractionDigits: digits, maximumFractionDigits: Math.max(digits, n !== 0 && Math.abs(n) < 0.1 ? 4 : digits) })}`

export function size(bytes: number): string {
  const units = ['B', 'kB', 'MB', 'GB', 'TB', 'PB']
  let i = 0
  while (bytes >= 1000 && i < units.length - 1) {
    bytes /= 1000
    i++
  }
  return `${i === 0 ? bytes : bytes.toFixed(1)} ${units[i]}`
}

export function duration(ms: number): string {
  if (ms < 1000) return `${Math.round(ms)} ms`
  const s = ms / 1000
  if (s < 60) return `${s.toFixed(1)} s`
  if (s < 3600) return `${Math.floor(s / 60)} min ${Math.floor(s % 60)} s`
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`
}

export function ago(at: string | null | undefined): string {
  if (!at) return '–'
  const ms = Date.now() - Date.parse(at)
  return ms < 0 ? `in ${duration(-ms)}` : ms < 60000 ? 'just now' : `${duration(ms)} ago`
}

export const moment = (at: string | null | undefined): string => (at ? new Date(at).toLocaleString() : '–')

/** Text of a stranger in one line of a terminal or a title: control characters are shown, not obeyed. */
export const printable = (text: string): string =>
  text.replace(/[\u0000-\u001f\u007f-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, (c) => (c === '\t' ? '\t' : '\ufffd'))

/** A line of a log without the sequences that colour a terminal. */
export const plain = (line: string): string => printable(line.replace(/\u001b\[[0-9;:?]*[ -/]*[@-~]|\u001b\][^\u0007\u001b]*(\u0007|\u001b\\)/g, ''))

/** A word of a command line that is copied into a terminal: a stranger's text stays this one word. */
export const quote = (text: string): string => (/^[\w./:@=+-]+$/.test(text) ? text : `'${printable(text).replace(/'/g, `'\\''`)}'`)
