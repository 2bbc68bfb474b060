package state

import (
	"cmp"
	"regexp"
	"slices"
	"time"

	"gantry/fleet"
	"gantry/scheduler/state/table"
)

// What one account may have, so that none fills the state, and how large it may be.
const (
	maxTemplates  = 1000
	maxRegistries = 200
	maxSecrets    = 100
	maxS3Keys     = 50
	maxKeys       = 100
	maxSSHKeys    = 100

	maxSealed   = fleet.MaxSecretBytes + 64
	maxS3Sealed = 512
)

// tooMany refuses one more thing of an account.
func tooMany(most int, things string) error {
	return fleet.BreaksRule("an account may have at most %d %s", most, things)
}

func templates() *noun[fleet.TemplateID, fleet.Template] {
	return &noun[fleet.TemplateID, fleet.Template]{
		put: numPutTemplate, remove: numDeleteTemplate, name: "template", most: maxTemplates, once: onceTemplate,
		of: func(tb *tables) *table.Index[fleet.AccountID, fleet.TemplateID, fleet.Template] {
			return tb.templatesOf
		},
		id:      func(r *fleet.Template) fleet.TemplateID { return r.ID },
		created: func(r *fleet.Template) time.Time { return r.CreatedAt },
		clone:   cloneTemplate,
		rev:     func(r *fleet.Template) *uint64 { return &r.Rev },
		keep: func(in, old *fleet.Template) {
			in.Source = "" // an operator's to give
			if old != nil {
				in.CreatedAt = old.CreatedAt
			}
			if old != nil && in.Public {
				in.Source = old.Source
			}
		},
		check: func(t *txn, in *fleet.Template) error {
			return cmp.Or(checkID("$.id", string(in.ID)), t.checkRegistry(in.Account, in.Registry))
		},
		users: func(t *txn, account fleet.AccountID, id fleet.TemplateID) []uses {
			return []uses{
				t.livePods(account, func(p *fleet.Pod) bool { return p.Spec.Template == id }),
				t.endpointsWith(account, func(s *fleet.EndpointSpec) bool { return s.Template == id }),
			}
		},
	}
}

func (c SetTemplateSource) apply(t *txn) (any, error) {
	old := t.base.templates.Get(t.Txn, c.Template)
	if old == nil {
		return nil, fleet.NotFound("template")
	}
	template := *old
	switch c.Source {
	case fleet.SourceOfficial, fleet.SourceVerified:
		template.Source = c.Source
	case fleet.SourceCommunity, "":
		template.Source = ""
	default:
		return nil, fleet.Invalid("$.source", "must be official, verified or community")
	}
	if !template.Public {
		return nil, fleet.BreaksRule("the template is not public")
	}
	return templates().write(t, &template), nil
}

func registries() *noun[fleet.RegistryID, fleet.Registry] {
	return &noun[fleet.RegistryID, fleet.Registry]{
		put: numPutRegistry, remove: numDeleteRegistry, name: "registry credential", most: maxRegistries, once: onceRegistry,
		of: func(tb *tables) *table.Index[fleet.AccountID, fleet.RegistryID, fleet.Registry] {
			return tb.registriesOf
		},
		id:      func(r *fleet.Registry) fleet.RegistryID { return r.ID },
		created: func(r *fleet.Registry) time.Time { return r.CreatedAt },
		clone:   cloneRegistry,
		rev:     func(r *fleet.Registry) *uint64 { return &r.Rev },
		check:   func(_ *txn, in *fleet.Registry) error { return checkID("$.id", string(in.ID)) },
		users: func(t *txn, account fleet.AccountID, id fleet.RegistryID) []uses {
			n := t.base.templatesOf.CountIf(t.Txn, account, func(r *fleet.Template) bool { return r.Registry == id })
			return []uses{
				{n: n, thing: "template"},
				t.livePods(account, func(p *fleet.Pod) bool { return p.Spec.Registry == id }),
				t.endpointsWith(account, func(s *fleet.EndpointSpec) bool { return s.Registry == id }),
			}
		},
	}
}

// checkRegistry refuses a credential that is not the account's, or not there any more; none is fine.
func (t *txn) checkRegistry(account fleet.AccountID, id fleet.RegistryID) error {
	if id == "" {
		return nil
	}
	if r := t.base.registries.Get(t.Txn, id); r == nil || r.Account != account {
		return fleet.Stale("the registry credential is gone")
	}
	return nil
}

func secrets() *noun[string, fleet.AccountSecret] {
	return &noun[string, fleet.AccountSecret]{
		put: numPutSecret, remove: numDeleteSecret, name: "secret", most: maxSecrets, named: true,
		of:      func(tb *tables) *table.Index[fleet.AccountID, string, fleet.AccountSecret] { return tb.secretsOf },
		id:      func(r *fleet.AccountSecret) string { return r.Name },
		created: func(r *fleet.AccountSecret) time.Time { return r.CreatedAt },
		clone:   cloneSecret,
		keep: func(in, old *fleet.AccountSecret) {
			if old != nil {
				in.CreatedAt = old.CreatedAt
			}
		},
		check: func(_ *txn, in *fleet.AccountSecret) error {
			if !fleet.ValidSecretName(in.Name) {
				return fleet.Invalid("$.name", "must be "+fleet.SecretNameRule)
			}
			if len(in.Sealed) > maxSealed {
				return fleet.Invalid("$.value", "must have at most 32768 bytes")
			}
			return nil
		},
		users: func(t *txn, account fleet.AccountID, name string) []uses {
			named := func(env map[string]string) bool {
				names, _ := fleet.SecretsOf(env)
				return slices.Contains(names, name)
			}
			return []uses{
				t.livePods(account, func(p *fleet.Pod) bool { return named(p.Spec.Env) }),
				t.endpointsWith(account, func(s *fleet.EndpointSpec) bool { return named(s.Env) }),
			}
		},
	}
}

// checkSecrets refuses an environment that names a secret which is not the account's, or not there any more.
func (t *txn) checkSecrets(account fleet.AccountID, env map[string]string) error {
	names, _ := fleet.SecretsOf(env)
	for _, name := range names {
		if t.base.secrets.Get(t.Txn, secrets().key(account, name)) == nil {
			return fleet.Stale("a secret is gone")
		}
	}
	return nil
}

// accessKey is the form of an access key.
var accessKey = regexp.MustCompile(`^user_[0-9A-Za-z]{27}$`)

func s3Keys() *noun[string, fleet.S3Key] {
	return &noun[string, fleet.S3Key]{
		put: numPutS3Key, remove: numDeleteS3Key, name: "S3 key", most: maxS3Keys,
		of:      func(tb *tables) *table.Index[fleet.AccountID, string, fleet.S3Key] { return tb.s3KeysOf },
		id:      func(r *fleet.S3Key) string { return r.ID },
		created: func(r *fleet.S3Key) time.Time { return r.CreatedAt },
		clone:   cloneS3Key,
		check: func(_ *txn, in *fleet.S3Key) error {
			switch {
			case !accessKey.MatchString(in.ID):
				return fleet.Invalid("$.id", "must be user_ and 27 letters and digits")
			case len(in.Name) > maxID:
				return fleet.Invalid("$.name", "must have at most 256 bytes")
			case len(in.Sealed) == 0 || len(in.Sealed) > maxS3Sealed:
				return fleet.Invalid("$.secret", "must have 1 to 512 bytes")
			case !in.ExpiresAt.IsZero() && !in.ExpiresAt.After(in.CreatedAt):
				return fleet.Invalid("$.expiresAt", "must not be in the past")
			}
			return nil
		},
	}
}

// endpoints declares serverless endpoints. Their workers are pods that belong to them; what becomes of those when an endpoint is
// deleted is the autoscaler's to do.
func endpoints() *noun[fleet.EndpointID, fleet.Endpoint] {
	return &noun[fleet.EndpointID, fleet.Endpoint]{
		put: numPutEndpoint, remove: numDeleteEndpoint, name: "endpoint", once: onceEndpoint,
		of: func(tb *tables) *table.Index[fleet.AccountID, fleet.EndpointID, fleet.Endpoint] {
			return tb.endpointsOf
		},
		id:      func(r *fleet.Endpoint) fleet.EndpointID { return r.ID },
		created: func(r *fleet.Endpoint) time.Time { return r.CreatedAt },
		clone:   cloneEndpoint,
		rev:     func(r *fleet.Endpoint) *uint64 { return &r.Rev },
		counts:  countsOfEndpoint,
		keep: func(in, old *fleet.Endpoint) {
			if old != nil {
				in.CreatedAt, in.Spec.Type = old.CreatedAt, old.Spec.Type
			}
		},
		check: checkEndpoint,
		users: func(t *txn, _ fleet.AccountID, id fleet.EndpointID) []uses { return []uses{t.modelsOn(id)} },
	}
}

const maxWebhookSealed = 1024 // bytes

// checkEndpoint refuses an endpoint that refers to what is not there.
func checkEndpoint(t *txn, in *fleet.Endpoint) error {
	if n := len(in.Releases); n == 0 || n > fleet.MaxReleases {
		return fleet.Invalid("$.releases", "must be 1 to 20")
	}
	if t.base.models.Get(t.Txn, fleet.ModelID(in.ID)) != nil {
		return exists("the id is that of a public model")
	}
	if len(in.Spec.WebhookKey) > maxWebhookSealed {
		return fleet.Invalid("$.spec.webhook_key", "must be at most 1024 bytes")
	}
	if id := in.Spec.Template; id != "" {
		// A public one may be deleted while others' endpoints were made from it: their records hold all that they need.
		r := t.base.templates.Get(t.Txn, id)
		if r == nil && in.Rev == 0 || r != nil && r.Account != in.Account && !r.Public && in.Rev == 0 {
			return fleet.Stale("the template is gone")
		}
	}
	for _, id := range in.Spec.Volumes {
		if t.volumeOf(in.Account, id) == nil {
			return fleet.Stale("a network volume is gone")
		}
	}
	return cmp.Or(
		checkID("$.id", string(in.ID)), t.checkRegistry(in.Account, in.Spec.Registry), t.checkSecrets(in.Account, in.Spec.Env),
	)
}

// endpointsWith finds the endpoints of an account whose specification matches.
func (t *txn) endpointsWith(account fleet.AccountID, match func(*fleet.EndpointSpec) bool) uses {
	out := uses{thing: "endpoint"}
	for _, id := range t.base.endpointsOf.Keys(t.Txn, account) {
		if e := t.base.endpoints.Get(t.Txn, id); match(&e.Spec) {
			out.add(string(id), e.Spec.Name)
		}
	}
	return out
}
