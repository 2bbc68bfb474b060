import type { ComponentChildren } from 'preact'
import { useState } from 'preact/hooks'
import { address, json } from '../api'
import { useRows } from '../live'
import { attempt, Copy, Dialog, Empty, Failure, Page, Sure, Table, type Column } from '../ui'

/** A list of plain records of an account: seen, made, deleted. */
export interface Noun<T> {
  title: string
  one: string // as in "New secret"
  url: string
  field: string // of the list in an answer
  kind: string // of its events
  id(row: T): string
  name(row: T): string
  text(row: T): string
  columns: Column<T>[]
  empty: [title: string, cli: string]
  loses?: string // what a delete takes away
  Form?(props: { done(shown?: ComponentChildren): void }): ComponentChildren
  note?: ComponentChildren
}

/** Text that is shown once, and never again. */
export const Once = ({ what, text }: { what: string; text: string }) => (
  <><p>{what} is shown now, and never again.</p><div class="cli"><code>{text}</code><Copy text={text} /></div></>
)

export function NounPage<T>({ of: n }: { of: Noun<T> }) {
  const list = useRows<T>(n.url, n.field, { kind: n.kind, id: n.id })
  const [making, make] = useState(false)
  const [shown, show] = useState<ComponentChildren>()
  const columns = n.loses === undefined ? n.columns : [...n.columns, {
    name: '', narrow: true, cell: (row: T) => (
      <Sure label="Delete" ask={<p><b>{n.name(row)}</b>: {n.loses}</p>} act={() => void attempt(`${n.name(row)} was deleted.`, async () => {
        await json('DELETE', address(`${n.url}/{id}`, { id: n.id(row) }))
        list.reload()
      })} />),
  }]
  const { Form } = n
  return (
    <Page wide title={n.title} actions={Form && <button type="button" class="primary" onClick={() => make(true)}>New {n.one}</button>}>
      <Failure of={list.error} />
      {n.note}
      <Table label={n.title.toLowerCase()} rows={list.rows} columns={columns} id={n.id} text={n.text} loading={list.loading} empty={<Empty title={n.empty[0]} cli={n.empty[1]} />} />
      {making && Form && <Dialog title={`New ${n.one}`} close={() => make(false)}><Form done={(text) => {
        make(false)
        list.reload()
        if (text) show(text)
      }} /></Dialog>}
      {shown && <Dialog title={`New ${n.one}`} close={() => show(undefined)}>{shown}</Dialog>}
    </Page>
  )
}

/** A form whose values are read when it is sent. */
export function Asking({ children, act, label = 'Create' }: { children: ComponentChildren; act(read: (name: string) => string, all: (name: string) => string[]): Promise<void>; label?: string }) {
  const [error, fail] = useState<Error>()
  const [busy, wait] = useState(false)
  return (
    <form onSubmit={async (e) => {
      e.preventDefault()
      const data = new FormData(e.currentTarget)
      wait(true)
      try {
        await act((name) => String(data.get(name) ?? '').trim(), (name) => data.getAll(name).map(String))
      } catch (e) {
        fail(e as Error)
      }
      wait(false)
    }}>
      <Failure of={error} />
      {children}
      <footer><button type="submit" class="primary" disabled={busy}>{label}</button></footer>
    </form>
  )
}
