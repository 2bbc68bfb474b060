import type { ComponentType } from 'preact'
import { useEffect, useRef, useState } from 'preact/hooks'
import { signedIn } from './api'
import { live } from './live'
import { go, href, route } from './route'
import { AccountSwitch, Login, logout, me, whoami } from './signin'
import { lasting, useStore } from './store'
import { Badge, Dialog, Failure, Messages, Page } from './ui'
import { routes, type Place } from './places'

const theme = lasting('gantry-theme', 'system')
function Nav({ at, operator, open, close }: { at: string; operator: boolean; open: boolean; close(): void }) {
  useEffect(() => document.querySelector('#nav [aria-current]')?.scrollIntoView({ block: 'nearest' }), [at])
  const link = (r: Place) => (
    <li key={r.path}><a href={href(r.path)} onClick={close} aria-current={at === r.path || (r.path !== '/' && at.startsWith(r.path + '/')) ? 'page' : undefined}>{r.name}</a></li>
  )
  return (
    <nav id="nav" class={open ? 'open' : ''} aria-label="Console">
      <ul>{routes.filter((r) => r.name && !r.operator).map(link)}</ul>
      {operator && <><h2>Fleet</h2><ul>{routes.filter((r) => r.name && r.operator).map(link)}</ul></>}
    </nav>
  )
}

function Help({ close }: { close(): void }) {
  return (
    <Dialog title="Keys" close={close}>
      <table class="plain"><tbody>
        <tr><th scope="row"><kbd>/</kbd></th><td>Search this list</td></tr>
        <tr><th scope="row"><kbd>?</kbd></th><td>These keys</td></tr>
        {routes.filter((r) => r.key).map((r) => <tr key={r.path}><th scope="row"><kbd>g</kbd> <kbd>{r.key}</kbd></th><td>{r.name}</td></tr>)}
      </tbody></table>
    </Dialog>
  )
}

/** Keys of the page, where nothing is being typed. */
function useKeys(help: () => void) {
  useEffect(() => {
    let g = 0
    const press = (e: KeyboardEvent) => {
      if (e.ctrlKey || e.metaKey || e.altKey || (e.target as Element).closest('input,textarea,select,dialog,.xterm')) return
      if (e.key === '/') {
        document.querySelector<HTMLInputElement>('input.search')?.focus()
        e.preventDefault()
      } else if (e.key === '?') help()
      else if (e.key === 'g') g = Date.now()
      else if (Date.now() - g < 1500) {
        const to = routes.find((r) => r.key === e.key)
        if (to) go(to.path)
        g = 0
      }
    }
    addEventListener('keydown', press)
    return () => removeEventListener('keydown', press)
  }, [])
}

const loaded = new Map<Place, ComponentType<{ args: string[] }>>()

/** Shows the page of a path, whose code comes when it is first shown. */
function Shown({ path, visit }: { path: string; visit: number }) {
  const [, again] = useState({})
  const [broken, fail] = useState<Error>()
  const want = useRef<Place>()
  let args: string[] = []
  const place = routes.find((r) => {
    const m = r.match.exec(path)
    if (m) args = m.slice(1).map(decodeURIComponent)
    return m
  })
  want.current = place
  useEffect(() => {
    fail(undefined)
    if (place && !loaded.has(place)) {
      place.load().then((c) => {
        loaded.set(place, c)
        if (want.current === place) again({})
      }, fail)
    }
  }, [place])
  if (!place) return <Page key={visit} title="Nothing here"><p>The console has no such page. <a href={href('/')}>Overview</a></p></Page>
  const Shows = loaded.get(place)
  if (broken) return <Page title={place.name || 'Gantry'}><Failure of={broken} /></Page>
  return Shows ? <Shows key={visit} args={args} /> : <main id="main" aria-busy="true" />
}

export function App() {
  const { path, visit } = useStore(route)
  const who = useStore(me)
  const session = useStore(signedIn)
  const arrives = useStore(live)
  const look = useStore(theme)
  const [menu, open] = useState(false)
  const [help, ask] = useState(false)
  const [error, fail] = useState<Error>()
  useKeys(() => ask(true))
  useEffect(() => {
    whoami().catch(fail)
  }, [])
  useEffect(() => {
    document.documentElement.dataset.theme = look
  }, [look])
  if (!session) return <><Login /><Messages /></>
  if (!who) return error ? <Page title="Gantry"><Failure of={error} /></Page> : <main id="main" aria-busy="true" />
  return (
    <>
      <a class="skip" href="#main">Skip to the page</a>
      <header class="top">
        <button type="button" class="quiet menu" aria-expanded={menu} aria-controls="nav" aria-label="Menu" onClick={() => open(!menu)}>☰</button>
        <a class="brand" href={href('/')}>Gantry</a>
        <span class="grow" />
        <AccountSwitch />
        <span title="Whether changes arrive by themselves"><Badge of={arrives} /></span>
        <select aria-label="Colours" value={look} onChange={(e) => theme.set(e.currentTarget.value)}>
          <option value="system">Auto</option><option value="light">Light</option><option value="dark">Dark</option>
        </select>
        <button type="button" class="quiet" aria-label="Keys" onClick={() => ask(true)}>?</button>
        <button type="button" class="quiet" onClick={logout}>Sign out</button>
      </header>
      <div class="frame"><Nav at={path} operator={who.operator} open={menu} close={() => open(false)} /><Shown path={path} visit={visit} /></div>
      {help && <Help close={() => ask(false)} />}
      <Messages />
    </>
  )
}
