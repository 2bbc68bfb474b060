// Server-sent events over fetch, because an EventSource can send no header.
import { send } from './api'

export interface Message {
  id: string
  name: string
  data: string
}

/** Reads a stream until it ends, and hands over each message. */
export async function read(url: string, signal: AbortSignal, lastID: string, f: (m: Message) => void): Promise<void> {
  const answer = await send(url, { signal, headers: lastID ? { 'Last-Event-ID': lastID } : {} })
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader()
  let rest = ''
  for (;;) {
    const { value, done } = await reader.read()
    if (done) return
    const parts = (rest + value).split('\n\n')
    rest = parts.pop()!
    for (const part of parts) {
      const m: Message = { id: '', name: 'message', data: '' }
      for (const line of part.split('\n')) {
        if (line.startsWith('id: ')) m.id = line.slice(4)
        else if (line.startsWith('event: ')) m.name = line.slice(7)
        else if (line.startsWith('data: ')) m.data += (m.data && '\n') + line.slice(6)
      }
      if (m.id || m.data) f(m)
    }
  }
}

/** Reads a stream again and again from where it ended, until it is stopped. The first failure is handed over; so is the end. */
export function follow(url: string, handle: { message(m: Message): void; state(live: boolean, error?: Error): void }): () => void {
  const stop = new AbortController()
  let last = ''
  let wait = 500
  const run = async () => {
    while (!stop.signal.aborted) {
      try {
        await read(url, stop.signal, last, (m) => {
          if (m.id) last = m.id
          wait = 500
          handle.state(true)
          handle.message(m)
        })
        handle.state(false)
      } catch (e) {
        if (stop.signal.aborted) return
        handle.state(false, e as Error)
        const status = (e as { status?: number }).status ?? 0
        if (status >= 400 && status < 500 && status !== 429) return
      }
      await new Promise((done) => setTimeout(done, wait))
      wait = Math.min(wait * 2, 15000)
    }
  }
  void run()
  return () => stop.abort()
}
