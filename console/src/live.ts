// What changes, as the API's events tell it. All parts of the page share one stream for the account and one for the fleet.
import { useEffect, useRef, useState } from 'preact/hooks'
import { all, ApiError, json, signedIn } from './api'
import { follow } from './sse'
import { store } from './store'

export interface Event {
  kind: string
  id: string
  parentId: string | null
  type: 'created' | 'changed' | 'deleted'
  at: string
  status: string | null
  reason: string | null
  record: unknown
}

type Listener = { event(e: Event): void; reset(): void }

export type Live = 'connecting' | 'live' | 'broken' | 'refused'

/** Whether changes arrive by themselves, on the stream that told last. */
export const live = store<Live>('connecting')

/** A stream of events that is open while somebody listens. */
export class Stream {
  private listeners = new Set<Listener>()
  private stop?: () => void
  private ready = false

  constructor(private url: string) {}

  listen(l: Listener): () => void {
    this.listeners.add(l)
    if (!this.stop) this.open()
    return () => {
      this.listeners.delete(l)
      // A page that is left for another one keeps the stream.
      setTimeout(() => {
        if (this.listeners.size === 0) this.close()
      }, 1000)
    }
  }

  close() {
    this.stop?.()
    this.stop = undefined
    this.ready = false
  }

  private open() {
    this.stop = follow(this.url, {
      state: (good, error) => {
        live.set(good ? 'live' : error instanceof ApiError && error.status === 403 ? 'refused' : 'broken')
      },
      message: (m) => {
        if (m.name === 'ready' || m.name === 'reset') {
          if (this.ready || m.name === 'reset') for (const l of [...this.listeners]) l.reset()
          this.ready = true
        } else if (m.name === 'message' && m.data) {
          const e = JSON.parse(m.data) as Event
          for (const l of [...this.listeners]) l.event(e)
        }
      },
    })
  }
}

export const ofAccount = new Stream('/v2/events')
export const ofFleet = new Stream('/admin/v1/events')

signedIn.follow(() => {
  if (!signedIn.get()) {
    ofAccount.close()
    ofFleet.close()
  }
})

export interface Loaded<T> {
  value: T | undefined
  error: ApiError | undefined
  reload(): void
}

/** Reads something, and again when its events say that it changed. */
export function useLive<T>(url: string | null, about: (e: Event) => boolean, stream = ofAccount): Loaded<T> {
  const [value, set] = useState<T>()
  const [error, fail] = useState<ApiError>()
  const [turn, again] = useState(0)
  const last = useRef(url)
  if (last.current !== url) {
    last.current = url
    set(undefined)
    fail(undefined)
  }
  useEffect(() => {
    if (url === null) return
    const stop = new AbortController()
    let busy = false
    let missed = false
    const load = async () => {
      missed = busy
      if (busy) return
      busy = true
      try {
        set(await json<T>('GET', url, undefined, { signal: stop.signal }))
        fail(undefined)
      } catch (e) {
        if (!stop.signal.aborted) fail(e as ApiError)
      }
      busy = false
      if (missed && !stop.signal.aborted) void load()
    }
    const leave = stream.listen({ event: (e) => about(e) && void load(), reset: () => void load() })
    void load()
    return () => {
      leave()
      stop.abort()
    }
  }, [url, turn])
  return { value, error, reload: () => again((n) => n + 1) }
}

export interface Rows<T> {
  rows: T[]
  error: ApiError | undefined
  loading: boolean
  reload(): void
}

interface ListOf<T> {
  kind: string // of its events
  id(row: T): string
  keep?(row: T): boolean
  stream?: Stream
}

/** Reads a list, and then has its events change it. Events that come close to each other are drawn together. */
export function useRows<T>(url: string, field: string, of: ListOf<T>): Rows<T> {
  const [rows, set] = useState<T[]>([])
  const [error, fail] = useState<ApiError>()
  const [loading, begin] = useState(true)
  const [turn, again] = useState(0)
  useEffect(() => {
    const stop = new AbortController()
    let known = new Map<string, T>()
    let drawn = 0
    let complete = false
    let early: Event[] = []
    const draw = () => {
      drawn ||= requestAnimationFrame(() => {
        drawn = 0
        set([...known.values()])
      })
    }
    const take = (e: Event) => {
      if (e.type === 'deleted' || e.record === null || (of.keep && !of.keep(e.record as T))) known.delete(e.id)
      else known.set(e.id, e.record as T)
    }
    const load = async () => {
      complete = false
      early = []
      try {
        await all<T>(url, field, stop.signal, (items) => {
          known = new Map(items.map((row) => [of.id(row), row]))
          draw()
        })
        fail(undefined)
      } catch (e) {
        if (!stop.signal.aborted) fail(e as ApiError)
      }
      if (stop.signal.aborted) return
      early.forEach(take)
      complete = true
      draw()
      begin(false)
    }
    const leave = (of.stream ?? ofAccount).listen({
      event: (e) => {
        if (e.kind !== of.kind) return
        if (complete) take(e)
        else early.push(e)
        draw()
      },
      reset: () => void load(),
    })
    void load()
    return () => {
      leave()
      stop.abort()
      cancelAnimationFrame(drawn)
    }
  }, [url, turn])
  return { rows, error, loading, reload: () => again((n) => n + 1) }
}

/** Reads something that has no events. */
export function useOnce<T>(url: string | null): Loaded<T> {
  return useLive<T>(url, () => false)
}
