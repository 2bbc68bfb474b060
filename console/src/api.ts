// Calls of the public API, with the types of its own document.
import type { components, paths } from '../gen/api'
import { store } from './store'

export type Schemas = components['schemas']
export type Verb = 'get' | 'post' | 'put' | 'patch' | 'delete'
export type PathOf<M extends Verb> = {
  [P in keyof paths]: paths[P] extends { [K in M]: { responses: unknown } } ? P : never
}[keyof paths]

type Op<M extends Verb, P extends PathOf<M>> = paths[P][M]
type Json<R> = R extends { content: { 'application/json': infer T } } ? T : never
type Good<R> = R extends { 200: infer T } ? Json<T> : R extends { 201: infer T } ? Json<T> : R extends { 202: infer T } ? Json<T> : void
export type Answer<M extends Verb, P extends PathOf<M>> = Op<M, P> extends { responses: infer R } ? Good<R> : never
export type Body<M extends Verb, P extends PathOf<M>> =
  Op<M, P> extends { requestBody?: { content: { 'application/json': infer B } } } ? B : never
type Query<M extends Verb, P extends PathOf<M>> = Op<M, P> extends { parameters: { query?: infer Q } } ? Q : never

export interface Options<M extends Verb, P extends PathOf<M>> {
  path?: Record<string, string>
  query?: Query<M, P>
  body?: Body<M, P>
  signal?: AbortSignal
  once?: string // Idempotency-Key
}

/** What the API says of a request that it refused. */
export class ApiError extends Error {
  constructor(readonly status: number, readonly problem: Partial<Schemas['Problem']>) {
    super(problem.detail ?? problem.error ?? `the API answered ${status}`)
  }
  get lines(): string[] {
    return (this.problem.errors ?? []).concat((this.problem.excluded ?? []).map((e) => `${e.hosts} hosts: ${e.reason}`))
  }
}

/** Whether there is a session, as far as the last answer told. */
export const signedIn = store(true)

// A page that was left may be kept by the browser, with its connections, of which there are few: it lets go of them, and is read anew.
const page = new AbortController()
addEventListener('pagehide', () => page.abort())
addEventListener('pageshow', (e) => e.persisted && location.reload())

/** Sends a request from this page, whose session the scheduler knows by its cookie. */
export async function send(url: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers)
  headers.set('X-Gantry-Console', '1')
  let answer: Response
  try {
    answer = await fetch(url, { ...init, signal: init.signal ? AbortSignal.any([init.signal, page.signal]) : page.signal, headers, credentials: 'same-origin', cache: 'no-store' })
  } catch (e) {
    if (e instanceof DOMException && e.name === 'AbortError') throw e
    throw new ApiError(0, { detail: 'The scheduler cannot be reached.' })
  }
  if (answer.ok) return answer
  if (answer.status === 401 && !url.startsWith('/console/')) signedIn.set(false)
  const text = await answer.text()
  let problem: Partial<Schemas['Problem']>
  try {
    problem = JSON.parse(text)
  } catch {
    problem = { detail: text.slice(0, 300) }
  }
  throw new ApiError(answer.status, problem)
}

/** Sends JSON and returns the answer's. */
export async function json<T>(method: string, url: string, body?: unknown, init: RequestInit = {}): Promise<T> {
  const headers = new Headers(init.headers)
  if (body !== undefined) headers.set('Content-Type', 'application/json')
  const answer = await send(url, { ...init, method: method.toUpperCase(), headers, body: body === undefined ? undefined : JSON.stringify(body) })
  return (answer.status === 204 ? undefined : await answer.json()) as T
}

/** The address of an operation. */
export function address(path: string, args: Record<string, string> = {}, query: object = {}): string {
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(args[name] ?? ''))
  const words = new URLSearchParams()
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one !== undefined && one !== '') words.append(name, String(one))
  }
  return words.size ? `${filled}?${words}` : filled
}

export function call<M extends Verb, P extends PathOf<M>>(method: M, path: P, o: Options<M, P> = {}): Promise<Answer<M, P>> {
  return json(method, address(path, o.path, o.query as object), o.body, {
    signal: o.signal, headers: o.once ? { 'Idempotency-Key': o.once } : {},
  })
}

/** Reads a list to its end, 1000 at a time, and hands over what it has so far. */
export async function all<T>(url: string, field: string, signal: AbortSignal, sofar: (items: T[]) => void): Promise<void> {
  let items: T[] = []
  let next = ''
  do {
    const page = await json<Record<string, unknown>>('GET', `${url}${url.includes('?') ? '&' : '?'}limit=1000${next && `&cursor=${encodeURIComponent(next)}`}`, undefined, { signal })
    items = items.concat((page[field] ?? []) as T[])
    next = (page.next as string | undefined) ?? ''
    sofar(items)
  } while (next)
}
