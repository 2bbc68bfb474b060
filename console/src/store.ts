import { useEffect, useState } from 'preact/hooks'

/** A value that components follow. */
export interface Store<T> {
  get(): T
  set(value: T): void
  follow(f: () => void): () => void
}

export function store<T>(value: T): Store<T> {
  const followers = new Set<() => void>()
  return {
    get: () => value,
    set(next) {
      if (next === value) return
      value = next
      for (const f of [...followers]) f()
    },
    follow(f) {
      followers.add(f)
      return () => followers.delete(f)
    },
  }
}

export function useStore<T>(s: Store<T>): T {
  const [, again] = useState({})
  useEffect(() => s.follow(() => again({})), [s])
  return s.get()
}

/** A choice of this browser that lasts; one that cannot be kept holds for this page. */
export function lasting(name: string, first: string): Store<string> {
  let kept: string | null = null
  try {
    kept = localStorage.getItem(name)
  } catch { /* the browser keeps nothing */ }
  const s = store(kept ?? first)
  s.follow(() => {
    try {
      localStorage.setItem(name, s.get())
    } catch { /* the browser keeps nothing */ }
  })
  return s
}
