// A program in a pod, over the WebSocket of the API. The browser sends the session's cookie with it.
import { ApiError, type Schemas } from '../api'

export interface Session {
  write(data: Uint8Array | string): void
  resize(cols: number, rows: number): void
  close(): void
}

interface Handler {
  output(data: Uint8Array): void
  end(code: number, error: string): void
}

const channel = { input: 0, output: 1, error: 2, exit: 3, size: 4 }

/** Starts a program. The end is told once, however it comes. */
export function exec(pod: string, request: Schemas['ExecRequest'], h: Handler): Session {
  const socket = new WebSocket(`${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}/v2/pods/${encodeURIComponent(pod)}/exec`)
  socket.binaryType = 'arraybuffer'
  let over = false
  const end = (code: number, error: string) => {
    if (!over) h.end(code, error)
    over = true
  }
  socket.onopen = () => socket.send(JSON.stringify(request))
  socket.onmessage = (m) => {
    const data = new Uint8Array(m.data as ArrayBuffer)
    if (data[0] === channel.output || data[0] === channel.error) h.output(data.subarray(1))
    if (data[0] === channel.exit) {
      const result = JSON.parse(new TextDecoder().decode(data.subarray(1))) as { code: number; error?: string }
      end(result.code, result.error ?? '')
    }
  }
  socket.onclose = () => end(-1, 'The connection was closed.')
  const say = (to: number, data: Uint8Array) => {
    if (socket.readyState !== WebSocket.OPEN) return
    for (let at = 0; at < data.length; at += 1 << 19) {
      const part = data.subarray(at, at + (1 << 19))
      const frame = new Uint8Array(part.length + 1)
      frame[0] = to
      frame.set(part, 1)
      socket.send(frame)
    }
  }
  const encoder = new TextEncoder()
  return {
    write: (data) => say(channel.input, typeof data === 'string' ? encoder.encode(data) : data),
    resize: (cols, rows) => say(channel.size, encoder.encode(JSON.stringify({ cols, rows }))),
    close: () => {
      over = true
      socket.close()
    },
  }
}

const most = 4 << 20 // bytes of an answer that is kept

/** Runs a program to its end and returns what it wrote. */
export function run(pod: string, command: string[], signal: AbortSignal): Promise<string> {
  return new Promise((done, fail) => {
    const parts: Uint8Array[] = []
    let length = 0
    const session = exec(pod, { command }, {
      output: (data) => {
        length += data.length
        if (length <= most) parts.push(data.slice())
      },
      end: (code, error) => {
        const bytes = new Uint8Array(parts.reduce((n, p) => n + p.length, 0))
        parts.reduce((at, p) => (bytes.set(p, at), at + p.length), 0)
        const text = new TextDecoder().decode(bytes)
        if (code === 0) done(text)
        else fail(new ApiError(0, { detail: error || text.trim().slice(0, 300) || `exit code ${code}` }))
      },
    })
    signal.addEventListener('abort', () => session.close())
  })
}
