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

const nouns = () => import('./pages/nouns')
const account = () => import('./pages/account')
const endpoints = () => import('./pages/endpoints')
const fleet = () => import('./pages/fleet')
const gateways = () => import('./pages/gateways')
const alerts = () => import('./pages/alerts')
const operator = () => import('./pages/operator')
const catalog = () => import('./pages/catalog')
const clusters = () => import('./pages/clusters')
const pods = () => import('./pages/pods')
const people = () => import('./pages/people')

export const routes: Place[] = [
  place('/', 'Overview', () => import('./pages/overview').then((m) => m.Overview), { key: 'o' }),
  place('/pods', 'Pods', () => pods().then((m) => m.Pods), { key: 'p' }),
  place('/pods/new', '', () => import('./pages/create').then((m) => m.CreatePod)),
  place('/pods/:id', '', () => import('./pages/pod').then((m) => m.PodPage)),
  place('/endpoints', 'Endpoints', () => endpoints().then((m) => m.Endpoints), { key: 'e' }),
  place('/endpoints/new', '', () => endpoints().then((m) => m.NewEndpoint)),
  place('/endpoints/:id', '', () => endpoints().then((m) => m.EndpointPage)),
  place('/clusters', 'Clusters', () => clusters().then((m) => m.Clusters), { key: 'c' }),
  place('/clusters/:id', '', () => clusters().then((m) => m.ClusterPage)),
  place('/volumes', 'Volumes', () => nouns().then((m) => m.Volumes), { key: 'v' }),
  place('/volumes/:id', '', () => import('./pages/volume').then((m) => m.VolumePage)),
  place('/templates', 'Templates', () => nouns().then((m) => m.Templates), { key: 't' }),
  place('/networks', 'Networks', () => account().then((m) => m.Networks), { key: 'n' }),
  place('/secrets', 'Secrets', () => nouns().then((m) => m.Secrets), { key: 's' }),
  place('/registries', 'Registries', () => nouns().then((m) => m.Registries)),
  place('/s3-keys', 'S3 keys', () => nouns().then((m) => m.S3Keys)),
  place('/keys', 'API keys', () => nouns().then((m) => m.Keys), { key: 'k' }),
  place('/billing', 'Billing', () => account().then((m) => m.Billing), { key: 'b' }),
  place('/activity', 'Activity', () => account().then((m) => m.Activity), { key: 'a' }),
  place('/account', 'Account', () => nouns().then((m) => m.Account)),
  place('/you', 'You', () => people().then((m) => m.You), { key: 'y' }),
  place('/device', '', () => people().then((m) => m.Device)),
  place('/fleet', 'Map', () => fleet().then((m) => m.Map), { operator: true, key: 'm' }),
  place('/hosts', 'Hosts', () => fleet().then((m) => m.Hosts), { operator: true, key: 'h' }),
  place('/hosts/:id', '', () => fleet().then((m) => m.HostPage), { operator: true }),
  place('/schedulers', 'Schedulers', () => fleet().then((m) => m.Schedulers), { operator: true }),
  place('/gateways', 'Gateways', () => gateways().then((m) => m.Gateways), { operator: true }),
  place('/versions', 'Versions', () => gateways().then((m) => m.Versions), { operator: true }),
  place('/alerts', 'Alerts', () => alerts().then((m) => m.Alerts), { operator: true, key: 'l' }),
  place('/runbooks', '', () => alerts().then((m) => m.Runbooks), { operator: true }),
  place('/accounts', 'Accounts', () => operator().then((m) => m.Accounts), { operator: true }),
  place('/people', 'People', () => people().then((m) => m.People), { operator: true }),
  place('/accounts/:id', '', () => operator().then((m) => m.AccountPage), { operator: true }),
  place('/prices', 'Prices', () => operator().then((m) => m.Prices), { operator: true }),
  place('/backends', 'Backends', () => catalog().then((m) => m.Backends), { operator: true }),
  place('/data-centers', 'Data centers', () => catalog().then((m) => m.DataCenters), { operator: true }),
  place('/models', 'Public models', () => catalog().then((m) => m.Models), { operator: true }),
  place('/public-templates', 'Public templates', () => catalog().then((m) => m.PublicTemplates), { operator: true }),
  place('/fleet-activity', 'Fleet activity', () => account().then((m) => m.FleetActivity), { operator: true }),
]
