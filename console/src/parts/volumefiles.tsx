import { useEffect, useRef, useState } from 'preact/hooks'
import { ApiError, call, type Schemas } from '../api'
import { ago, printable, quote, size } from '../format'
import { setWord, word } from '../route'
import { attempt, Cli, Dialog, Failure, Field, Sure, Table } from '../ui'
import { save } from './files'
import { Asking } from './noun'

interface Entry {
  key: string // in the volume; that of a folder ends with a slash
  name: string
  bytes: number
  at: string
}

interface Page {
  entries: Entry[]
  next: string
}

type Act = 'list' | 'get' | 'put' | 'delete'

/** Sends one request to the S3 server. The API signs it: this page holds no key of S3. */
async function ask(volume: string, act: Act, o: { key?: string; cursor?: string; body?: Blob; signal?: AbortSignal; part?(sent: number): void }): Promise<XMLHttpRequest> {
  const link = await call('get', '/v2/network-volumes/{id}/link', { path: { id: volume }, query: { do: act, key: o.key, cursor: o.cursor, expiresIn: act === 'put' ? 3600 : 60 } })
  return new Promise((done, fail) => {
    const x = new XMLHttpRequest()
    x.open(link.method, link.url)
    x.responseType = act === 'get' ? 'blob' : 'document'
    if (act !== 'get') x.overrideMimeType('application/xml') // a document that is only read, and never shown
    x.onerror = () => fail(new ApiError(0, { detail: `The S3 server at ${new URL(link.url).origin} cannot be reached from this page. Its operator lets the console in with --console-origin ${location.origin}.` }))
    x.onabort = () => fail(new DOMException('left', 'AbortError'))
    x.onload = () => (x.status < 300 ? done(x) : fail(new ApiError(x.status, { detail: (act !== 'get' && x.responseXML?.querySelector('Message')?.textContent) || `The S3 server answered ${x.status}.` })))
    x.upload.onprogress = (e) => o.part?.(e.loaded)
    o.signal?.addEventListener('abort', () => x.abort())
    x.send(o.body)
  })
}

async function list(volume: string, folder: string, cursor: string, signal?: AbortSignal): Promise<Page> {
  const xml = (await ask(volume, 'list', { key: folder, cursor, signal })).responseXML
  const text = (of: Element | Document | null, name: string) => of?.querySelector(name)?.textContent ?? ''
  const key = (of: Element, name: string) => decodeURIComponent(text(of, name).replace(/\+/g, ' '))
  const rows = (name: string) => [...(xml?.querySelectorAll(`ListBucketResult > ${name}`) ?? [])]
  const folders = rows('CommonPrefixes').map((e) => ({ key: key(e, 'Prefix'), bytes: 0, at: '' }))
  const files = rows('Contents').map((e) => ({ key: key(e, 'Key'), bytes: Number(text(e, 'Size')), at: text(e, 'LastModified') })).filter((e) => e.key !== folder)
  return { entries: [...folders, ...files].map((e) => ({ ...e, name: e.key.slice(folder.length) })), next: text(xml, 'NextContinuationToken') }
}

/** Deletes a file, or a folder with all that is below it. */
async function remove(volume: string, e: Entry, told: (name: string) => void): Promise<void> {
  if (e.key.endsWith('/')) {
    for (;;) {
      const { entries, next } = await list(volume, e.key, '')
      for (const below of entries) await remove(volume, below, told)
      if (!next) break
    }
  }
  told(e.key)
  await ask(volume, 'delete', { key: e.key })
}

const most = 5 * 2 ** 30 // bytes of one request of S3

/** The files of a network volume, over S3, without a pod. */
export function VolumeFiles({ of: v }: { of: Schemas['NetworkVolume'] }) {
  const [folder, open] = useState(word('path'))
  const [page, set] = useState<Page>()
  const [error, fail] = useState<Error>()
  const [busy, wait] = useState('')
  const [making, make] = useState(false)
  const [turn, again] = useState(0)
  const pick = useRef<HTMLInputElement>(null)
  const reload = () => again((n) => n + 1)
  useEffect(() => {
    const stop = new AbortController()
    set(undefined)
    fail(undefined)
    setWord('path', folder)
    list(v.id, folder, '', stop.signal).then(set, (e) => stop.signal.aborted || fail(e as Error))
    return () => stop.abort()
  }, [v.id, folder, turn])
  const run = async (what: string, did: string, f: () => Promise<unknown>) => {
    wait(what)
    const good = await attempt(did, f)
    wait('')
    return good
  }
  const get = (e: Entry) => run(`Reading ${printable(e.name)}`, `${printable(e.name)} was read.`, async () => save((await ask(v.id, 'get', { key: e.key })).response as Blob, e.name))
  const put = async (files: File[]) => {
    const all = files.length === 1 ? printable(files[0]!.name) : `${files.length} files`
    await run(`Writing ${all}`, `Written: ${all}`, async () => {
      for (const f of files) {
        if (f.size > most) throw new ApiError(0, { detail: `${printable(f.name)} is larger than 5 GiB: S3 clients write it in parts.` })
        await ask(v.id, 'put', { key: folder + f.name, body: f, part: (sent) => wait(`Writing ${printable(f.name)}: ${size(sent)} of ${size(f.size)}`) })
      }
    })
    reload()
  }
  const steps = folder.split('/').filter(Boolean)
  return (
    <>
      <div class="tools">
        <nav aria-label="Folder" class="row">
          <button type="button" class="quiet" onClick={() => open('')}>/</button>
          {steps.map((s, i) => <button key={i} type="button" class="quiet" onClick={() => open(`${steps.slice(0, i + 1).join('/')}/`)}>{printable(s)} /</button>)}
        </nav>
        <span class="grow" />
        <input ref={pick} type="file" multiple hidden aria-label="Files to upload" onChange={(e) => void put([...(e.currentTarget.files ?? [])]).then(() => (pick.current!.value = ''))} />
        <button type="button" onClick={reload}>Read again</button>
        <button type="button" disabled={!!busy} onClick={() => make(true)}>New folder</button>
        <button type="button" class="primary" disabled={!!busy} onClick={() => pick.current!.click()}>Upload</button>
      </div>
      {busy && <p class="note" role="status">{busy}</p>}
      <Failure of={error} />
      {!page && !error && <p class="dim" role="status">Reading…</p>}
      {page && <Table label="files" rows={page.entries} id={(e) => e.key} text={(e) => e.name} empty={<p class="empty">The folder is empty.</p>} columns={[
        { name: 'Name', narrow: true, sort: (e) => e.name, cell: (e) => (e.key.endsWith('/') ? <button type="button" class="quiet" onClick={() => open(e.key)}>{printable(e.name)}</button> : printable(e.name)) },
        { name: 'Size', number: true, sort: (e) => e.bytes, cell: (e) => (e.key.endsWith('/') ? 'folder' : size(e.bytes)) },
        { name: 'Changed', sort: (e) => e.at, cell: (e) => (e.at ? ago(e.at) : '–') },
        { name: '', narrow: true, cell: (e) => <>
          {!e.key.endsWith('/') && <button type="button" disabled={!!busy} aria-label={`Download ${printable(e.name)}`} onClick={() => void get(e)}>Download</button>}
          <Sure label="Delete" ask={<p><b>{printable(e.name)}</b>{e.key.endsWith('/') ? ' and all that is below it' : ''} cannot be brought back.</p>} act={() => void run(`Deleting ${printable(e.name)}`, `${printable(e.name)} was deleted.`, () => remove(v.id, e, (key) => wait(`Deleting ${printable(key)}`))).then(reload)} /></> },
      ]} />}
      {page?.next && <p><button type="button" onClick={() => void run('Reading more', 'More was read.', async () => {
        const more = await list(v.id, folder, page.next)
        set({ entries: [...page.entries, ...more.entries], next: more.next })
      })}>More files</button></p>}
      {making && <Dialog title="New folder" close={() => make(false)}><Asking label="Make" act={async (read) => {
        await ask(v.id, 'put', { key: `${folder}${read('name')}/`, body: new Blob([]) })
        make(false)
        reload()
      }}><Field label="Name"><input name="name" required autoFocus pattern="[^\/]+" /></Field></Asking></Dialog>}
      <Cli line={`aws s3 ls ${quote(`s3://${v.id}/${folder}`)} --endpoint-url <the S3 address of ${v.dataCenter}> --region ${v.dataCenter}`} />
    </>
  )
}
