import { useEffect, useMemo, useRef, useState } from 'preact/hooks'
import { ApiError, type Schemas } from '../api'
import { plain } from '../format'
import { setWord, word } from '../route'
import { follow, read, type Message } from '../sse'
import { Cli, Failure } from '../ui'

interface Line {
  id: number
  at: string
  source: string
  text: string
}

const most = 5000 // lines that are kept

/** A line with what is searched for marked. */
function Marked({ text, find }: { text: string; find: string }) {
  if (!find) return <>{text}</>
  const parts = []
  const low = text.toLowerCase()
  let at = 0
  for (let i = low.indexOf(find); i >= 0; i = low.indexOf(find, at)) {
    parts.push(text.slice(at, i), <mark key={i}>{text.slice(i, i + find.length)}</mark>)
    at = i + find.length
  }
  return <>{parts}{text.slice(at)}</>
}

/** A log that goes on, with its last lines at the bottom until one scrolls up. */
export function Logs({ url, cli, previous }: { url: string; cli: string; previous?: boolean }) {
  const [lines, set] = useState<Line[]>([])
  const [error, fail] = useState<Error>()
  const [find, search] = useState(word('find'))
  const [source, from] = useState('')
  const [before, look] = useState(false)
  const [times, time] = useState(false)
  const [stick, keep] = useState(true)
  const box = useRef<HTMLDivElement>(null)
  useEffect(() => {
    let kept: Line[] = []
    let drawn = 0
    let count = 0
    set([])
    fail(undefined)
    const take = (m: Message) => {
      if (m.name === 'error') return fail(new ApiError(0, JSON.parse(m.data) as Schemas['Problem']))
      if (!m.data) return
      const line = JSON.parse(m.data) as { source: string; line: string; ts: string }
      kept.push({ id: ++count, at: line.ts, source: line.source, text: plain(line.line) })
      if (kept.length > most * 1.2) kept = kept.slice(-most)
      drawn ||= requestAnimationFrame(() => {
        drawn = 0
        set(kept.slice(-most))
      })
    }
    const words = new URLSearchParams({ tail: '2000', ...(source && { source }), ...(before && { previous: 'true' }) })
    let stop: () => void
    if (before) {
      const c = new AbortController()
      read(`${url}?${words}`, c.signal, '', take).catch((e) => c.signal.aborted || fail(e as Error))
      stop = () => c.abort()
    } else stop = follow(`${url}?${words}`, { message: take, state: (_, e) => fail(e) })
    return () => {
      stop()
      cancelAnimationFrame(drawn)
    }
  }, [url, source, before])
  const low = find.toLowerCase()
  const shown = useMemo(() => (low ? lines.filter((l) => l.text.toLowerCase().includes(low)) : lines), [lines, low])
  useEffect(() => {
    if (stick && box.current) box.current.scrollTop = box.current.scrollHeight
  }, [shown, stick])
  return (
    <>
      <div class="tools">
        <input type="search" class="search" placeholder="Search" aria-label="Search the log" value={find} onInput={(e) => {
          search(e.currentTarget.value)
          setWord('find', e.currentTarget.value)
        }} />
        <select aria-label="Source" value={source} onChange={(e) => from(e.currentTarget.value)}><option value="">All lines</option><option value="container">Container</option><option value="system">System</option></select>
        {previous && <label class="row"><input type="checkbox" checked={before} onChange={(e) => look(e.currentTarget.checked)} />Run before</label>}
        <label class="row"><input type="checkbox" checked={times} onChange={(e) => time(e.currentTarget.checked)} />Times</label>
        <label class="row"><input type="checkbox" checked={stick} onChange={(e) => keep(e.currentTarget.checked)} />Follow</label>
        <span class="dim count">{shown.length.toLocaleString()} lines</span>
      </div>
      <Failure of={error} />
      <div class="log mono" ref={box} tabIndex={0} role="log" aria-label="Log" aria-live="off" onScroll={(e) => {
        const b = e.currentTarget
        const end = b.scrollHeight - b.scrollTop - b.clientHeight < 30
        if (end !== stick) keep(end)
      }}>
        {shown.map((l) => <div key={l.id} class={l.source}>{times && <time>{l.at.slice(11, 23)}</time>}<Marked text={l.text} find={low} /></div>)}
        {shown.length === 0 && <div class="dim">{find ? 'No line has that.' : 'Nothing yet.'}</div>}
      </div>
      <Cli line={cli} />
    </>
  )
}
