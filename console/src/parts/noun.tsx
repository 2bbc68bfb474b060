import type { ComponentChildren } from 'preact'
import { useState } from 'preact/hooks'
import { address, json } from '../api'
import { useRows, type Stream } from '../live'
import { attempt, Copy, Dialog, Empty, Failure, Page, Sure, Table, type Column } from '../ui'

/** A list of plain records: seen, made, changed, deleted. */
export interface Noun<T> {
  title: string
  one: string // as in "New secret"
  url: string
  field: string // of the list in an answer
  kind: string // of its events
  stream?: Stream // of the account, unless it says
  id(row: T): string
  name(row: T): string
  text(row: T): string
  columns: Column<T>[]
  empty: [title: string, cli: string]
  loses?: string // what a delete takes away
  Form?(props: { of?: T; done(shown?: ComponentChildren): void }): ComponentChildren
  changes?: boolean // the form also changes what there is
  note?: ComponentChildren
}

/** Text that is shown once, and never again. */
export const Once = ({ what, text }: { what: string; text: string }) => (
  <><p>{what} is shown now, and never again.</p><div class="cli"><code>{text}</code><Copy text={text} /></div></>
)

export function NounPage<T>({ of: n }: { of: Noun<T> }) {
  const list = useRows<T>(n.url, n.field, { kind: n.kind, id: n.id, stream: n.stream })
  const [making, make] = useState<{ of?: T }>()
  const [shown, show] = useState<ComponentChildren>()
  const changed = n.changes ? [...n.columns, { name: 'Change', cell: (row: T) => <button type="button" onClick={() => make({ of: row })}>Change</button> }] : n.columns
  const title = making?.of ? `Change ${n.name(making.of)}` : `New ${n.one}`
  const columns = n.loses === undefined ? changed : [...changed, {
    name: '', narrow: true, cell: (row: T) => (
      <Sure label="Delete" ask={<p><b>{n.name(row)}</b>: {n.loses}</p>} act={() => void attempt(`${n.name(row)} was deleted.`, async () => {
        await json('DELETE', address(`${n.url}/{id}`, { id: n.id(row) }))
        list.reload()
      })} />),
  }]
  const { Form } = n
  return (
    <Page wide title={n.title} actions={Form && <button type="button" class="primary" onClick={() => make({})}>New {n.one}</button>}>
      <Failure of={list.error} />
      {n.note}
      <Table label={n.title.toLowerCase()} rows={list.rows} columns={columns} id={n.id} text={n.text} loading={list.loading} empty={<Empty title={n.empty[0]} cli={n.empty[1]} />} />
      {making && Form && <Dialog title={title} close={() => make(undefined)}><Form of={making.of} done={(text) => {
        make(undefined)
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
