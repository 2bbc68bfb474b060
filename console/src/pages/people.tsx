// The page of who is signed in, that which lets command lines in, and, for operators, that of people.
import qrcode from 'qrcode-generator'
import { useEffect, useMemo, useState } from 'preact/hooks'
import { address, all, ApiError, call, json, type Schemas } from '../api'
import { Asking, Once } from '../parts/noun'
import { forget, me, whoami, type Me } from '../signin'
import { useStore } from '../store'
import { attempt, Badge, Card, Cli, Copy, Dialog, Empty, Facts, Failure, Field, Page, Sure, Table, When } from '../ui'

const secret = (name: string, label: string, fresh = false) => (
  <Field label={label}><input type="password" name={name} required autoComplete={fresh ? 'new-password' : 'current-password'} minLength={fresh ? 10 : 1} maxLength={256} /></Field>
)
const whose = (login: string) => <input type="text" name="username" autoComplete="username" value={login} hidden readOnly />
const code = <Field label="Code"><input name="code" required inputMode="numeric" autoComplete="one-time-code" pattern="[0-9]{6}" maxLength={6} /></Field>

/** 20 random bytes as 32 letters of base32. */
function newSecret(): string {
  const letters = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567'
  return Array.from(crypto.getRandomValues(new Uint8Array(32)), (b) => letters[b & 31]).join('')
}

/** A text as a QR picture, dark on light in all colours: cameras read no other. */
function Picture({ of: text, label }: { of: string; label: string }) {
  const [size, path] = useMemo(() => {
    const code = qrcode(0, 'M')
    code.addData(text)
    code.make()
    const n = code.getModuleCount()
    const dark = Array.from({ length: n * n }, (_, i) => (code.isDark(Math.floor(i / n), i % n) ? `M${(i % n) + 4} ${Math.floor(i / n) + 4}h1v1h-1z` : ''))
    return [n + 8, dark.join('')] as const
  }, [text])
  return <svg class="qr" viewBox={`0 0 ${size} ${size}`} role="img" aria-label={label} shape-rendering="crispEdges"><rect width={size} height={size} fill="#fff" /><path d={path} fill="#000" /></svg>
}

function Codes({ person, done }: { person: Me; done(text: string): Promise<void> }) {
  const [made] = useState(newSecret)
  const set = (keep: boolean) => async (read: (name: string) => string) => {
    await json('PUT', '/v2/me/totp', { password: read('password'), code: read('code'), ...(keep ? { secret: made } : {}) })
    await done(keep ? 'Codes are needed from now on.' : 'Codes are needed no more.')
  }
  if (person.totp) return <Asking label="Need no codes" act={set(false)}><p>Signing in with the password takes a code of your authenticator.</p>{whose(person.login)}{secret('password', 'Password')}{code}</Asking>
  const url = `otpauth://totp/Gantry:${encodeURIComponent(person.login)}?secret=${made}&issuer=Gantry`
  return (
    <Asking label="Need codes" act={set(true)}>
      <p>Add this secret to your authenticator, as a picture, as text or <a href={url}>as a link</a>, and type the code that it shows.</p>
      <Picture of={url} label="The secret for a camera" />
      <div class="cli"><code class="totp">{made}</code><Copy text={made} /></div>
      {whose(person.login)}{secret('password', 'Password')}{code}
    </Asking>
  )
}

export function You() {
  const person = useStore(me)?.person
  if (!person) return <Page title="You"><p>This session is that of an API key. People sign in with a login that an operator made.</p><Cli line="gantry person create ada@example.com --role ACCOUNT=developer" /></Page>
  const done = async (text: string) => {
    await attempt(text, whoami)
  }
  return (
    <Page title="You" actions={<Sure label="Sign out everywhere" ask={<p>All {person.sessions} sessions end, this one, too, and the keys of your command lines are deleted.</p>} act={() => {
      void attempt('All sessions ended.', () => json('DELETE', '/v2/me/sessions')).then((ended) => ended && forget())
    }} />}>
      <Card title={person.login}>
        <Facts of={[['Sessions', person.sessions], ['Provider', person.provider ? 'bound' : 'not bound']]} />
        <ul>{person.memberships.map((m) => <li key={m.accountId}>{m.name}: {m.role}</li>)}</ul>
      </Card>
      {person.password && <Card title="Password"><Asking label="Change the password" act={async (read) => {
        await json('PUT', '/v2/me/password', { password: read('password'), newPassword: read('newPassword') })
        await done('The password was changed, and all other sessions ended.')
      }}>{whose(person.login)}{secret('password', 'Password so far')}{secret('newPassword', 'New password', true)}</Asking></Card>}
      {person.password && <Card title="Codes"><Codes key={String(person.totp)} person={person} done={done} /></Card>}
    </Page>
  )
}

/** A command line that waits to be let in. */
interface Waiting {
  name: string
  address: string
  readOnly: boolean
  expiresAt: string
}

export function Device() {
  const [at, look] = useState(new URLSearchParams(location.search).get('code') ?? '')
  const [found, find] = useState<Waiting>()
  const [said, say] = useState('')
  const [error, fail] = useState<Error>()
  const seek = (text: string) => {
    find(undefined)
    fail(undefined)
    if (text) json<Waiting>('GET', address('/v2/me/devices/{id}', { id: text })).then(find, (e) => fail(e instanceof ApiError && e.status === 404 ? new Error('No command line waits under this code.') : e))
  }
  useEffect(() => seek(at), [])
  const decide = async (allow: boolean, days = 0) => {
    try {
      await json('POST', address('/v2/me/devices/{id}', { id: at }), { allow, expiresInDays: days })
      say(allow ? 'The command line was let in. You may close this page.' : 'The command line was turned away.')
    } catch (e) {
      fail(e as Error)
    }
  }
  if (said) return <Page title="A command line"><p role="status">{said}</p></Page>
  return (
    <Page title="A command line">
      <Failure of={error} />
      {!found && <form onSubmit={(e) => {
        e.preventDefault()
        seek(at)
      }}>
        <Field label="Code" hint="The one that gantry login shows."><input name="device" value={at} onInput={(e) => look(e.currentTarget.value)} required autoComplete="off" spellcheck={false} maxLength={12} /></Field>
        <footer><button type="submit" class="primary">Go on</button></footer>
      </form>}
      {found && <Card title="Let it in?">
        <Facts of={[['Machine', found.name], ['Address', found.address], ['Asks to', found.readOnly ? 'read' : 'do all that you may'], ['Waits until', <When at={found.expiresAt} />]]} />
        <p>It gets an API key of its own in this account. Let it in only if it is you who typed <code>gantry login</code>, and it shows the code <b>{at}</b>.</p>
        <Asking label="Let it in" act={(read) => decide(true, Number(read('days')))}>
          <Field label="The key works"><select name="days"><option value="0">until it is deleted</option><option value="1">for a day</option><option value="30">for 30 days</option><option value="366">for a year</option></select></Field>
        </Asking>
        <button type="button" onClick={() => void decide(false)}>Turn it away</button>
      </Card>}
    </Page>
  )
}

type Person = Schemas['Person']
const roles = ['owner', 'developer', 'viewer', 'billing'] as const

function NewPerson({ accounts, done }: { accounts: Schemas['OperatorAccount'][]; done(made: Schemas['NewPerson']): void }) {
  return (
    <Asking label="Create" act={async (read) => {
      done(await call('post', '/admin/v1/people', { body: {
        login: read('login'), memberships: [{ accountId: read('account'), role: read('role') as (typeof roles)[number] }], noPassword: read('provider') === 'on',
      } }))
    }}>
      <Field label="E-mail address or name"><input name="login" required spellcheck={false} maxLength={191} autoComplete="off" /></Field>
      <Field label="Account"><select name="account" required>{accounts.map((a) => <option key={a.id} value={a.id}>{a.name}</option>)}</select></Field>
      <Field label="Role"><select name="role">{roles.map((r) => <option key={r}>{r}</option>)}</select></Field>
      <label><input type="checkbox" name="provider" /> Signs in through the provider alone</label>
    </Asking>
  )
}

export function People() {
  const [people, keep] = useState<Person[]>([])
  const [accounts, know] = useState<Schemas['OperatorAccount'][]>([])
  const [loading, wait] = useState(true)
  const [error, fail] = useState<Error>()
  const [making, make] = useState(false)
  const [shown, show] = useState<Schemas['NewPerson']>()
  const reload = () => {
    const stop = new AbortController()
    all<Person>('/admin/v1/people', 'people', stop.signal, keep).catch(fail).finally(() => wait(false))
    return () => stop.abort()
  }
  useEffect(reload, [])
  useEffect(() => {
    const stop = new AbortController()
    all<Schemas['OperatorAccount']>('/admin/v1/accounts', 'accounts', stop.signal, know).catch(fail)
    return () => stop.abort()
  }, [])
  const act = (text: string, f: () => Promise<unknown>) => void attempt(text, f).then(reload)
  const one = (p: Person, below = '') => address(`/admin/v1/people/{id}${below}`, { id: p.id })
  const reset = (p: Person, body: object, text: string) => act(text, async () => {
    const made = await json<Schemas['NewPerson']>('POST', one(p, '/reset'), body)
    if (made.password) show(made)
  })
  return (
    <Page wide title="People" actions={<button type="button" class="primary" onClick={() => make(true)}>New person</button>}>
      <Failure of={error} />
      <Table label="people" rows={people} id={(p) => p.id} text={(p) => `${p.login} ${p.memberships.map((m) => `${m.name} ${m.role}`).join(' ')}`} loading={loading}
        empty={<Empty title="Nobody signs in without an API key yet." cli="gantry person create ada@example.com --role ACCOUNT=developer" />} columns={[
          { name: 'Login', narrow: true, sort: (p) => p.login, cell: (p) => p.login },
          { name: 'Roles', cell: (p) => p.memberships.map((m) => `${m.name}: ${m.role}`).join(', ') },
          { name: 'Password', cell: (p) => p.password + (p.totp ? ' and code' : '') },
          { name: 'Sessions', number: true, sort: (p) => p.sessions, cell: (p) => p.sessions },
          { name: 'State', cell: (p) => <Badge of={p.disabled ? 'disabled' : 'ready'} /> },
          { name: '', narrow: true, cell: (p) => (
            <>
              <Sure label="Reset" ask={<p><b>{p.login}</b> gets a new password for one sign-in and needs no codes; all sessions end.</p>} act={() => reset(p, { password: true, totp: true }, `${p.login} was reset.`)} />
              <button type="button" onClick={() => act(`${p.login} was signed out.`, () => json('POST', one(p, '/reset'), {}))}>Sign out</button>
              <button type="button" onClick={() => act(`${p.login} was changed.`, () => json('PATCH', one(p), { disabled: !p.disabled }))}>{p.disabled ? 'Enable' : 'Disable'}</button>
              <Sure label="Delete" ask={<p><b>{p.login}</b> and the keys of its command lines work no more.</p>} act={() => act(`${p.login} was deleted.`, () => json('DELETE', one(p)))} />
            </>
          ) },
        ]} />
      {making && <Dialog title="New person" close={() => make(false)}><NewPerson accounts={accounts} done={(made) => {
        make(false)
        if (made.password) show(made)
        reload()
      }} /></Dialog>}
      {shown && <Dialog title={shown.person.login} close={() => show(undefined)}><Once what="The password for the first sign-in" text={shown.password ?? ''} /></Dialog>}
      <Cli line="gantry person list" />
    </Page>
  )
}
