import { useEffect, useRef, useState } from 'preact/hooks'
import { address, send } from '../api'
import { printable, quote, size } from '../format'
import { setWord, word } from '../route'
import { attempt, Cli, Copy, Failure, Table } from '../ui'
import { run } from './exec'
import { first, pack } from './tar'

interface Entry {
  name: string
  kind: 'folder' | 'file' | 'link' | 'other'
  bytes: number
  at: string
}

const kinds: Record<string, Entry['kind']> = { d: 'folder', '-': 'file', l: 'link' }

/** Reads a line of ls -lnA. */
function entry(line: string): Entry | undefined {
  const m = /^(.)\S+\s+\d+\s+\d+\s+\d+\s+(\d+|\d+,\s+\d+)\s+(\S+\s+\S+\s+\S+) (.*)$/.exec(line)
  if (!m) return undefined
  const kind = kinds[m[1]!] ?? 'other'
  return { kind, bytes: parseInt(m[2]!, 10), at: m[3]!, name: kind === 'link' ? m[4]!.split(' -> ')[0]! : m[4]! }
}

const join = (folder: string, name: string) => `${folder === '/' ? '' : folder}/${name}`

/** Gives a file to whoever looks, under a name that can be saved anywhere. */
export function save(data: Blob, name: string) {
  const a = document.createElement('a')
  a.href = URL.createObjectURL(data)
  a.download = printable(name).replace(/[/\\]/g, '_')
  a.click()
  setTimeout(() => URL.revokeObjectURL(a.href), 60000)
}

export function Files({ pod }: { pod: string }) {
  const [folder, open] = useState(word('path') || '/')
  const [entries, set] = useState<Entry[]>()
  const [error, fail] = useState<Error>()
  const [busy, wait] = useState('')
  const [over, drag] = useState(false)
  const [turn, again] = useState(0)
  const pick = useRef<HTMLInputElement>(null)
  useEffect(() => {
    const stop = new AbortController()
    set(undefined)
    fail(undefined)
    setWord('path', folder === '/' ? '' : folder)
    run(pod, ['/bin/sh', '-c', 'LC_ALL=C ls -lnA -- "$1"', 'sh', `${folder}/`], stop.signal).then(
      (text) => set(text.split('\n').map(entry).filter((e) => e !== undefined)), (e) => fail(e as Error))
    return () => stop.abort()
  }, [pod, folder, turn])
  const url = (path: string) => address('/v2/pods/{id}/files', { id: pod }, { path })
  const get = async (e: Entry) => {
    wait(`Reading ${printable(e.name)}`)
    await attempt(`${printable(e.name)} was read.`, async () => {
      const tar = await (await send(url(join(folder, e.name)))).blob()
      if (e.kind === 'file') save(await first(tar), e.name)
      else save(tar, `${e.name}.tar`)
    })
    wait('')
  }
  const put = async (files: FileList | null | undefined) => {
    if (!files?.length) return
    wait(`Writing ${files.length} files`)
    await attempt(`${files.length} files were written to ${printable(folder)}.`, () => send(url(folder), { method: 'PUT', headers: { 'Content-Type': 'application/x-tar' }, body: pack([...files]) }))
    wait('')
    again((n) => n + 1)
  }
  const steps = folder.split('/').filter(Boolean)
  return (
    <div onDragOver={(e) => {
      e.preventDefault()
      drag(true)
    }} onDragLeave={() => drag(false)} onDrop={(e) => {
      e.preventDefault()
      drag(false)
      void put(e.dataTransfer?.files)
    }}>
      <div class="tools">
        <nav aria-label="Folder" class="row">
          <button type="button" class="quiet" onClick={() => open('/')}>/</button>
          {steps.map((s, i) => <button key={i} type="button" class="quiet" onClick={() => open(`/${steps.slice(0, i + 1).join('/')}`)}>{printable(s)} /</button>)}
        </nav>
        <Copy text={printable(folder)} label="Copy the path" />
        <span class="grow" />
        <input ref={pick} type="file" multiple hidden aria-label="Files to upload" onChange={(e) => void put(e.currentTarget.files).then(() => (pick.current!.value = ''))} />
        <button type="button" onClick={() => again((n) => n + 1)}>Read again</button>
        <button type="button" class="primary" disabled={!!busy} onClick={() => pick.current!.click()}>Upload</button>
      </div>
      {(busy || over) && <p class="note" role="status">{busy || `Let go to upload to ${printable(folder)}`}</p>}
      <Failure of={error} />
      {error && <p class="dim">Folders are listed with the container’s own <code>ls</code>, which its image must have.</p>}
      {!entries && !error && <p class="dim" role="status">Reading…</p>}
      {entries && <Table label="files" rows={entries} id={(e) => e.name} text={(e) => e.name} empty={<p class="empty">The folder is empty.</p>} columns={[
        { name: 'Name', narrow: true, sort: (e) => e.name, cell: (e) => (e.kind === 'folder' ? <a href="#" onClick={(ev) => {
          ev.preventDefault()
          open(join(folder, e.name))
        }}>{printable(e.name)}/</a> : printable(e.name)) },
        { name: 'Size', number: true, sort: (e) => e.bytes, cell: (e) => (e.kind === 'file' ? size(e.bytes) : e.kind) },
        { name: 'Changed', cell: (e) => e.at },
        { name: '', narrow: true, cell: (e) => (e.kind === 'file' || e.kind === 'folder') && <button type="button" disabled={!!busy} aria-label={`Download ${printable(e.name)}`} onClick={() => void get(e)}>Download</button> },
      ]} />}
      <Cli line={`gantry pod cp ${quote(`${pod}:${folder}`)} .`} />
    </div>
  )
}
