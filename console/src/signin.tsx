// How one signs in: with an API key, as a person, or through a provider; and who is signed in.
import { useState } from 'preact/hooks'
import { ApiError, call, json, signedIn, type Schemas } from './api'
import { ofAccount } from './live'
import { lasting, store, useStore } from './store'
import { Failure, Field, attempt } from './ui'

/** A person who is signed in; docs/api.md tells of /v2/me. */
export interface Me {
  login: string
  accountId: string
  memberships: { accountId: string; name: string; role: string }[]
  password: boolean
  totp: boolean
  provider: boolean
  sessions: number
}

/** The account of the session, whether its key is an operator's, and the person whose it is, if it is one's. */
export const me = store<{ account?: Schemas['Account']; operator: boolean; person?: Me } | undefined>(undefined)

const provider = store('')
const way = lasting('gantry-signin', 'key')

export async function whoami(): Promise<void> {
  const session = await json<{ signedIn: boolean; operator: boolean; person: boolean; provider?: string }>('GET', '/console/session')
  provider.set(session.provider ?? '')
  signedIn.set(session.signedIn)
  if (!session.signedIn) return
  const [account, person] = await Promise.all([
    call('get', '/v2/account').catch((e) => {
      if (e.status !== 403) throw e
      return undefined
    }),
    session.person ? json<Me>('GET', '/v2/me') : undefined,
  ])
  me.set({ account, operator: session.operator, person })
}

/** Ends what the page knows; the next session is asked for anew. */
export function forget(): void {
  me.set(undefined)
  signedIn.set(false)
  ofAccount.close()
}

export function logout(): void {
  void json('DELETE', '/console/session').finally(forget)
}

const words: Record<string, string> = {
  refused: 'No person here has the login that the provider told. Ask an operator.',
  failed: 'The sign-in through the provider did not work. Try again.',
  unavailable: 'The provider cannot be reached at the moment.',
}

/** The first password is good for choosing another, which the form then asks for. */
function PersonFields({ choose }: { choose: boolean }) {
  return (
    <>
      <Field label="E-mail address or name"><input name="login" autoComplete="username" required spellcheck={false} maxLength={191} /></Field>
      <Field label="Password"><input type="password" name="password" autoComplete="current-password" required maxLength={256} /></Field>
      <Field label="Code" hint="Of your authenticator, if you use one."><input name="code" autoComplete="one-time-code" inputMode="numeric" pattern="[0-9]{6}" maxLength={6} /></Field>
      {choose && <Field label="New password" hint="This password may be used once. Choose your own, of at least 10 characters."><input type="password" name="newPassword" autoComplete="new-password" required minLength={10} maxLength={256} /></Field>}
    </>
  )
}

export function Login() {
  const by = useStore(way)
  const through = useStore(provider)
  const [error, fail] = useState<Error | undefined>(() => {
    const text = words[new URLSearchParams(location.search).get('signin') ?? '']
    return text ? new Error(text) : undefined
  })
  const [choose, mustChoose] = useState(false)
  const [busy, wait] = useState(false)
  const pick = (to: string) => {
    way.set(to)
    fail(undefined)
  }
  return (
    <main id="main" class="login">
      <form class="card" onSubmit={async (e) => {
        e.preventDefault()
        const data = new FormData(e.currentTarget)
        const read = (name: string) => String(data.get(name) ?? '')
        wait(true)
        try {
          await json('POST', '/console/session', by === 'key' ? { key: read('key').trim() } : {
            login: read('login').trim(), password: read('password'), code: read('code').trim(), newPassword: read('newPassword'),
          })
          await whoami()
        } catch (e) {
          if (e instanceof ApiError && e.status === 409) mustChoose(true)
          fail(e as Error)
        }
        wait(false)
      }}>
        <h1>Gantry</h1>
        <div class="tools" role="group" aria-label="How to sign in">
          <button type="button" aria-pressed={by === 'key'} onClick={() => pick('key')}>API key</button>
          <button type="button" aria-pressed={by !== 'key'} onClick={() => pick('person')}>Password</button>
        </div>
        {by === 'key' ? (
          <>
            <input type="text" name="username" autoComplete="username" value="API key" hidden readOnly />
            <Field label="API key" hint="It stays with the scheduler: this page gets a session of 8 hours, and never sees the key again.">
              <input type="password" name="key" autoComplete="current-password" required spellcheck={false} autoFocus />
            </Field>
          </>
        ) : <PersonFields choose={choose} />}
        <Failure of={error} />
        <button type="submit" class="primary" disabled={busy}>Sign in</button>
        {through && <p><a class="button" target="_self" href="/console/oidc">Sign in with {through}</a></p>}
        <p class="dim">{by === 'key' ? <>A key is made with <code>gantry key create console</code>.</> : <>An operator makes a login with <code>gantry person create</code>.</>}</p>
      </form>
    </main>
  )
}

/** Which of the person's accounts the session acts in. */
export function AccountSwitch() {
  const who = useStore(me)
  const person = who?.person
  if (!person || person.memberships.length < 2) return <span class="dim account">{who?.account?.name}</span>
  return (
    <select class="account" aria-label="Account" value={person.accountId} onChange={(e) => {
      const accountId = e.currentTarget.value
      void attempt('The account was changed.', async () => {
        await json('PUT', '/v2/me/account', { accountId })
        location.assign('/console') // all that the page knows is another account's
      })
    }}>{person.memberships.map((m) => <option key={m.accountId} value={m.accountId}>{m.name}</option>)}</select>
  )
}
