// The pages of the console. The code of a group of pages is read when one of them is first shown.
import type { ComponentType } from 'preact'

type View = ComponentType<{ args: string[] }>

export interface Place {
  path: string
  match: RegExp
  name: string // in the navigation; '' for a page below another
  key?: string // after g
  operator?: boolean
  load(): Promise<View>
}

function place(path: string, name: string, load: () => Promise<View>, more: { key?: string; operator?: boolean } = {}): Place {
  return { path, name, load, match: new RegExp(`^${path.replace(/:id/g, '([^/]+)')}$`), ...more }
}

const pods = () => import('./pages/pods')

export const routes: Place[] = [
  place('/', 'Overview', () => import('./pages/overview').then((m) => m.Overview), { key: 'o' }),
  place('/pods', 'Pods', () => pods().then((m) => m.Pods), { key: 'p' }),
  place('/pods/new', '', () => import('./pages/create').then((m) => m.CreatePod)),
  place('/pods/:id', '', () => import('./pages/pod').then((m) => m.PodPage)),
]
