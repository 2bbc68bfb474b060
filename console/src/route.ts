import { store } from './store'

const base = '/console'

/** The path of the page without /console, such as "/pods/abc". */
const read = () => location.pathname.slice(base.length).replace(/\/+$/, '') || '/'
export const route = store({ path: read(), visit: 0 })

export const href = (path: string): string => base + (path === '/' ? '' : path)

export function go(path: string, replace = false): void {
  history[replace ? 'replaceState' : 'pushState'](null, '', href(path))
  arrive()
}

function arrive() {
  route.set({ path: read(), visit: route.get().visit + 1 })
  window.scrollTo(0, 0)
}

/** Has links inside the console change the page without loading it anew. */
export function watch(): void {
  addEventListener('popstate', arrive)
  addEventListener('click', (e) => {
    const a = (e.target as Element).closest?.('a')
    if (!a || e.defaultPrevented || e.button !== 0 || e.metaKey || e.ctrlKey || e.shiftKey || a.target || a.hasAttribute('download')) return
    const url = new URL(a.href)
    if (url.origin !== location.origin || !(url.pathname === base || url.pathname.startsWith(base + '/'))) return
    e.preventDefault()
    history.pushState(null, '', url.pathname + url.search)
    arrive()
    document.querySelector<HTMLElement>('main h1')?.focus()
  })
}

/** A word of the page's query, which is part of the link that one shares. */
export const word = (name: string): string => new URLSearchParams(location.search).get(name) ?? ''

export function setWord(name: string, value: string): void {
  const words = new URLSearchParams(location.search)
  if (value) words.set(name, value)
  else words.delete(name)
  history.replaceState(null, '', location.pathname + (words.size ? `?${words}` : ''))
}
