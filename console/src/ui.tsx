import type { ComponentChildren, JSX } from 'preact'
import { createPortal } from 'preact/compat'
import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { ApiError } from './api'
import { moment, ago, printable } from './format'
import { href, setWord, word } from './route'
import { store, useStore } from './store'

type Kids = { children?: ComponentChildren }

const tones: Record<string, string> = {
  RUNNING: 'good', READY: 'good', ready: 'good', IDLE: 'good', COMPLETED: 'good', HIGH: 'good', open: 'good', live: 'good',
  PROVISIONING: 'busy', STARTING: 'busy', INITIALIZING: 'busy', IN_PROGRESS: 'busy', IN_QUEUE: 'busy', CREATING: 'busy', UPDATING: 'busy', MEDIUM: 'busy',
  joining: 'busy', connecting: 'busy', ERROR: 'bad', UNHEALTHY: 'bad', FAILED: 'bad', TIMED_OUT: 'bad', DEGRADED: 'bad', unreachable: 'bad', fenced: 'bad',
  gone: 'bad', broken: 'bad', NONE: 'bad', THROTTLED: 'warn', LOW: 'warn', READ_ONLY: 'warn', cordoned: 'warn', draining: 'warn', refused: 'warn', page: 'bad', ticket: 'warn', connected: 'good', silent: 'bad', drained: 'warn',
}

/** A status, told by its word and not by its colour alone. */
export const Badge = ({ of }: { of: string }) => <span class={`badge ${tones[of] ?? ''}`}>{of.replace(/_/g, ' ').toLowerCase()}</span>

export const When = ({ at }: { at: string | null | undefined }) => (at ? <time dateTime={at} title={moment(at)}>{ago(at)}</time> : <>–</>)

export const Link = ({ to, children, ...rest }: { to: string } & JSX.HTMLAttributes<HTMLAnchorElement>) => <a href={href(to)} {...rest}>{children}</a>

export function Failure({ of }: { of: Error | undefined }) {
  if (!of) return null
  return (
    <div class="failure" role="alert">
      <strong>{of.message}</strong>
      {of instanceof ApiError && of.lines.length > 0 && <ul>{of.lines.map((l) => <li key={l}>{l}</li>)}</ul>}
    </div>
  )
}

export function Copy({ text, label = 'Copy' }: { text: string; label?: string }) {
  const [done, set] = useState(false)
  return (
    <button type="button" class="quiet" onClick={() => void navigator.clipboard.writeText(text).then(() => {
      set(true)
      setTimeout(() => set(false), 1500)
    }).catch(() => tell('The browser did not let the text be copied.', true))}>{done ? 'Copied' : label}</button>
  )
}

/** The line of the gantry command that does the same. */
export const Cli = ({ line }: { line: string }) => <div class="cli"><code>{line}</code><Copy text={line} /></div>

export const Empty = ({ title, cli, children }: { title: string; cli: string } & Kids) => (
  <div class="empty"><p>{title}</p>{children}<p class="dim">On the command line:</p><Cli line={cli} /></div>
)

export function Page({ title, actions, children, wide }: { title: ComponentChildren; actions?: ComponentChildren; wide?: boolean } & Kids) {
  useEffect(() => {
    if (typeof title === 'string') document.title = `${printable(title)} · Gantry`
  }, [title])
  return (
    <main id="main" class={wide ? 'wide' : ''}>
      <header class="page"><h1 tabIndex={-1}>{title}</h1><div class="actions">{actions}</div></header>
      {children}
    </main>
  )
}

export const Card = ({ title, children, actions }: { title?: string; actions?: ComponentChildren } & Kids) => (
  <section class="card">{title && <header><h2>{title}</h2>{actions}</header>}{children}</section>
)

export const Facts = ({ of }: { of: [string, ComponentChildren][] }) => (
  <dl class="facts">{of.filter(([, v]) => v !== null && v !== undefined && v !== '' && v !== false).map(([k, v]) => <div key={k}><dt>{k}</dt><dd>{v}</dd></div>)}</dl>
)

export const Stat = ({ name, value, note }: { name: string; value: ComponentChildren; note?: ComponentChildren }) => (
  <div class="stat"><span class="dim">{name}</span><b>{value}</b>{note && <span class="dim">{note}</span>}</div>
)

export const Bar = ({ part, label }: { part: number; label: string }) => (
  <span class="bar" role="img" aria-label={label} title={label}><i class={part > 0.9 ? 'bad' : ''} style={{ width: `${Math.min(100, Math.max(0, part * 100))}%` }} /></span>
)

export function Tabs({ names, children }: { names: string[]; children: (name: string) => ComponentChildren }) {
  const [at, set] = useState(word('tab') || names[0]!)
  const pick = (name: string) => {
    set(name)
    setWord('tab', name === names[0] ? '' : name)
  }
  const shown = names.includes(at) ? at : names[0]!
  return (
    <>
      <div class="tabs" role="tablist" onKeyDown={(e) => {
        const step = e.key === 'ArrowRight' ? 1 : e.key === 'ArrowLeft' ? -1 : 0
        if (!step) return
        const next = names[(names.indexOf(shown) + step + names.length) % names.length]!
        pick(next)
        document.getElementById(`tab-${next}`)?.focus()
      }}>
        {names.map((n) => (
          <button key={n} id={`tab-${n}`} type="button" role="tab" aria-selected={n === shown} aria-controls="panel" tabIndex={n === shown ? 0 : -1} onClick={() => pick(n)}>{n}</button>
        ))}
      </div>
      <div id="panel" role="tabpanel" aria-labelledby={`tab-${shown}`}>{children(shown)}</div>
    </>
  )
}

// Messages that go away by themselves.
const messages = store<{ id: number; text: string; bad: boolean }[]>([])
let told = 0

export function tell(text: string, bad = false): void {
  const id = ++told
  messages.set([...messages.get().slice(-3), { id, text, bad }])
  setTimeout(() => messages.set(messages.get().filter((m) => m.id !== id)), bad ? 10000 : 4000)
}

export const Messages = () => (
  <div class="messages" role="status" aria-live="polite">{useStore(messages).map((m) => <div key={m.id} class={m.bad ? 'bad' : ''}>{m.text}</div>)}</div>
)

/** Does something and says how that went. */
export async function attempt(what: string, f: () => Promise<unknown>): Promise<boolean> {
  try {
    await f()
    tell(what)
    return true
  } catch (e) {
    tell([(e as Error).message, ...(e instanceof ApiError ? e.lines : [])].join(' '), true)
    return false
  }
}

export function Dialog({ title, close, children }: { title: string; close(): void } & Kids) {
  const ref = useRef<HTMLDialogElement>(null)
  useEffect(() => ref.current?.showModal(), [])
  return createPortal(
    <dialog ref={ref} onClose={close} onClick={(e) => e.target === ref.current && close()} aria-label={title}>
      <header><h2>{title}</h2><button type="button" class="quiet" aria-label="Close" onClick={close}>✕</button></header>
      {children}
    </dialog>, document.body,
  )
}

/** A button that asks first. With word, that word has to be typed. */
export function Sure({ label, ask, act, word: must, kind = 'danger' }: { label: string; ask: ComponentChildren; act(): void; word?: string; kind?: string }) {
  const [open, set] = useState(false)
  const [typed, type] = useState('')
  return (
    <>
      <button type="button" class={kind} onClick={() => set(true)}>{label}</button>
      {open && (
        <Dialog title={label} close={() => set(false)}>
          <form method="dialog" onSubmit={(e) => {
            e.preventDefault()
            set(false)
            act()
          }}>
            <div>{ask}</div>
            {must && <Field label={`Type ${printable(must)} to go on`}><input value={typed} onInput={(e) => type(e.currentTarget.value)} autoFocus /></Field>}
            <footer>
              <button type="button" onClick={() => set(false)}>Cancel</button>
              <button type="submit" class={kind} disabled={!!must && typed !== must}>{label}</button>
            </footer>
          </form>
        </Dialog>
      )}
    </>
  )
}

export const Field = ({ label, hint, children }: { label: string; hint?: ComponentChildren } & Kids) => (
  <label class="field"><span>{label}</span>{children}{hint && <small>{hint}</small>}</label>
)

export interface Column<T> {
  name: string
  cell(row: T): ComponentChildren
  sort?(row: T): string | number
  narrow?: boolean // shown on a small screen, too
  number?: boolean
}

const rowHeight = 40

interface TableProps<T> {
  label: string
  rows: T[]
  columns: Column<T>[]
  id(row: T): string
  text(row: T): string // what a search looks at
  loading?: boolean
  empty: ComponentChildren
  filters?: ComponentChildren
}

/** A list of any length, of which only what is seen is in the page. */
export function Table<T>({ label, rows, columns, id, text, loading, empty, filters }: TableProps<T>) {
  const [search, setSearch] = useState(word('q'))
  const [order, setOrder] = useState<{ by: number; down: boolean }>()
  const [top, scroll] = useState(0)
  const box = useRef<HTMLDivElement>(null)
  const [height, measure] = useState(600)
  useEffect(() => {
    const look = new ResizeObserver(() => measure(box.current?.clientHeight ?? 600))
    if (box.current) look.observe(box.current)
    return () => look.disconnect()
  }, [rows.length === 0])
  const shown = useMemo(() => {
    const words = search.toLowerCase().split(/\s+/).filter(Boolean)
    let out = words.length ? rows.filter((r) => words.every((w) => text(r).toLowerCase().includes(w))) : rows
    const by = order && columns[order.by]?.sort
    if (by) {
      out = [...out].sort((a, b) => {
        const [x, y] = [by(a), by(b)]
        return (x < y ? -1 : x > y ? 1 : 0) * (order.down ? -1 : 1)
      })
    }
    return out
  }, [rows, search, order])
  if (rows.length === 0) return loading ? <p class="dim" role="status">Reading…</p> : <>{filters}{empty}</>
  const first = Math.max(0, Math.floor(top / rowHeight) - 8)
  const last = Math.min(shown.length, Math.ceil((top + height) / rowHeight) + 8)
  return (
    <>
      <div class="tools">
        <input type="search" class="search" placeholder="Search" aria-label={`Search ${label}`} aria-keyshortcuts="/" value={search} onInput={(e) => {
          setSearch(e.currentTarget.value)
          setWord('q', e.currentTarget.value)
          if (box.current) box.current.scrollTop = 0
        }} />
        {filters}
        <span class="dim count" role="status">{shown.length === rows.length ? rows.length.toLocaleString() : `${shown.length.toLocaleString()} of ${rows.length.toLocaleString()}`}</span>
      </div>
      <div class="table" ref={box} tabIndex={0} role="region" aria-label={label} onScroll={(e) => scroll(e.currentTarget.scrollTop)}>
        <table aria-rowcount={shown.length + 1}>
          <thead><tr>{columns.map((c, i) => (
            <th key={c.name} scope="col" class={`${c.narrow ? '' : 'broad'} ${c.number ? 'number' : ''}`} aria-sort={order?.by === i ? (order.down ? 'descending' : 'ascending') : undefined}>
              {c.sort ? <button type="button" onClick={() => {
                setOrder({ by: i, down: order?.by === i && !order.down })
                if (box.current) box.current.scrollTop = 0
              }}>{c.name}{order?.by === i ? (order.down ? ' ↓' : ' ↑') : ''}</button> : c.name}
            </th>))}</tr></thead>
          <tbody>
            {first > 0 && <tr class="gap" style={{ height: `${first * rowHeight}px` }} aria-hidden="true"><td /></tr>}
            {shown.slice(first, last).map((r, i) => (
              <tr key={id(r)} aria-rowindex={first + i + 2}>{columns.map((c) => <td key={c.name} class={`${c.narrow ? '' : 'broad'} ${c.number ? 'number' : ''}`}>{c.cell(r)}</td>)}</tr>
            ))}
            {last < shown.length && <tr class="gap" style={{ height: `${(shown.length - last) * rowHeight}px` }} aria-hidden="true"><td /></tr>}
          </tbody>
        </table>
      </div>
    </>
  )
}
