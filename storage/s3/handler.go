package s3

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Handler answers requests of the S3 protocol. It is safe for concurrent use.
type Handler struct {
	source   Source
	region   string
	domains  []string
	origins  []string
	log      *slog.Logger
	limits   Limits
	requests tokens
	stuck    tokens // requests that a file system keeps and that are no longer among the others
	names    *nameCache
	now      func() time.Time

	mu      sync.Mutex
	volumes map[string]*volume
}

// volume is what the handler keeps of a volume between requests, and of an account: its requests, and as threads those with a large document.
type volume struct {
	users    int // guarded by Handler.mu
	requests tokens
	threads  tokens
	scans    tokens
	keys     [64]sync.Mutex // by hash of the key: what must not change between a condition's check and the write
	swept    time.Time      // guarded by Handler.mu
}

// maxIdleVolumes bounds how many volumes are kept that nobody uses.
const maxIdleVolumes = 4096

// New returns a handler. It starts nothing.
func New(c Config) *Handler {
	h := &Handler{source: c.Source, region: c.Region, origins: c.Origins, log: c.Log, limits: c.Limits.withDefaults(), now: time.Now, volumes: map[string]*volume{}}
	for _, d := range c.Domains {
		h.domains = append(h.domains, strings.ToLower(strings.Trim(d, ".")))
	}
	if h.log == nil {
		h.log = slog.New(slog.DiscardHandler)
	}
	h.requests, h.stuck = make(tokens, h.limits.Requests), make(tokens, 2*h.limits.Requests)
	h.names = newNameCache(h.limits.CacheEntries)
	return h
}

// exchange is one request and its answer.
type exchange struct {
	h       *Handler
	w       http.ResponseWriter
	r       *http.Request
	control *http.ResponseController
	id      string
	bucket  string
	key     string
	query   url.Values
	sig     *signature
	access  Access
	place   *place // of the bucket
	account *volume
	begun   bool // the answer's head is sent
	seat    *seat
}

// place is a volume's folder during one request.
type place struct {
	ctx      context.Context
	wait     time.Duration
	folder   *Folder
	volume   Volume
	kept     *volume
	threads  tokens
	seat     *seat
	stall    time.Duration
	release  func()
	readOnly bool // the key's
}

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var id [8]byte
	_, _ = rand.Read(id[:])
	x := &exchange{h: h, w: w, r: r, control: http.NewResponseController(w), id: strings.ToUpper(hex.EncodeToString(id[:]))}
	if h.fromPage(w, r) {
		return
	}
	x.bucket, x.key = h.addressed(r.Host, r.URL.Path)
	w.Header().Set("X-Amz-Request-Id", x.id)
	x.awaken(r.ContentLength != 0)
	defer func() {
		if x.place != nil {
			x.place.release()
		}
	}()
	if err := h.requests.take(r.Context(), h.limits.Wait); err != nil {
		x.fail(slowDown())
		return
	}
	x.seat = &seat{h: h}
	defer x.seat.end()
	if err := x.serve(r.Context()); err != nil {
		x.fail(err)
	}
}

func (x *exchange) serve(ctx context.Context) error {
	if strings.Count(x.r.URL.RawQuery, "&") >= maxQuery {
		return invalid("The query has too many parameters.")
	}
	var err error
	if x.query, err = url.ParseQuery(x.r.URL.RawQuery); err != nil {
		return refuse(http.StatusBadRequest, "InvalidURI", "The query could not be parsed.")
	}
	if err := x.authenticate(ctx); err != nil {
		return err
	}
	op, err := x.operation()
	if err != nil {
		return err
	}
	if x.bucket == "" {
		return op.do(x)
	}
	if x.account, err = x.h.enter(ctx, x.access.Account); err != nil {
		return err
	}
	defer func() {
		x.account.requests.give()
		x.h.drop(x.account)
	}()
	if x.place, err = x.open(x.bucket); err != nil {
		return err
	}
	if err := x.place.allows(op.needs); err != nil {
		return err
	}
	return op.do(x)
}

// authenticate finds out who sent the request.
func (x *exchange) authenticate(ctx context.Context) error {
	sig, err := parseSignature(x.r, x.query)
	if err != nil {
		return err
	}
	if sig.region != x.h.region {
		f := badHeader("the region '" + sig.region + "' is wrong; expecting '" + x.h.region + "'")
		if sig.query {
			f = badQuery("Error parsing the X-Amz-Credential parameter; the region '" + sig.region + "' is wrong; expecting '" + x.h.region + "'")
		}
		f.region = x.h.region
		x.w.Header().Set("X-Amz-Bucket-Region", x.h.region) // by which clients find the right one: a HEAD has no body
		return f
	}
	if err := sig.timely(x.h.now()); err != nil {
		return err
	}
	access, err := x.h.source.Access(ctx, sig.key, sig.date)
	if errors.Is(err, ErrNoKey) {
		return refuse(http.StatusForbidden, "InvalidAccessKeyId", "The access key ID you provided does not exist in our records.")
	}
	if err != nil {
		return unavailable(err)
	}
	if err := sig.verify(x.r, x.query, access.SigningKey); err != nil {
		return err
	}
	x.sig, x.access = sig, access
	return nil
}

// open takes a place among a volume's requests and opens its folder.
func (x *exchange) open(bucket string) (*place, error) {
	p := &place{ctx: x.r.Context(), wait: x.h.limits.Wait, stall: x.h.limits.Stall, seat: x.seat, readOnly: x.access.ReadOnly}
	for _, v := range x.access.Volumes {
		if v.ID == bucket {
			p.volume = v
		}
	}
	if p.volume.ID == "" {
		return nil, noSuchBucket()
	}
	p.kept = x.h.hold(bucket)
	if err := p.kept.requests.take(p.ctx, p.wait); err != nil {
		x.h.drop(p.kept)
		return nil, slowDown()
	}
	p.threads = p.kept.threads
	p.release = func() {
		p.kept.requests.give()
		x.h.drop(p.kept)
	}
	folder, err := x.h.source.Open(p.ctx, x.sig.key, bucket)
	if err != nil {
		p.release()
		return nil, unavailable(err)
	}
	p.folder = folder
	giveBack := p.release
	p.release = func() {
		if folder.Release != nil {
			folder.Release()
		}
		giveBack()
	}
	return p, nil
}

func (h *Handler) hold(id string) *volume {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := h.volumes[id]
	if v == nil {
		for name, other := range h.volumes {
			if len(h.volumes) < maxIdleVolumes {
				break
			}
			if other.users == 0 {
				delete(h.volumes, name)
			}
		}
		most := h.limits.VolumeRequests
		if strings.HasPrefix(id, "/") {
			most = h.limits.AccountRequests
		}
		v = &volume{requests: make(tokens, most), threads: make(tokens, h.limits.VolumeThreads), scans: make(tokens, 2)}
		h.volumes[id] = v
	}
	v.users++
	return v
}

// enter takes a place among an account's requests, of which all of its volumes have some.
func (h *Handler) enter(ctx context.Context, account string) (*volume, error) {
	a := h.hold("/" + account) // which no volume is named
	if err := a.requests.take(ctx, h.limits.Wait); err != nil {
		h.drop(a)
		return nil, slowDown()
	}
	return a, nil
}

func (h *Handler) drop(v *volume) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v.users--
}

// lock keeps others of this process from writing a key until unlock.
func (p *place) lock(key string) (unlock func()) {
	hash := uint32(2166136261)
	for i := range len(key) {
		hash = (hash ^ uint32(key[i])) * 16777619
	}
	m := &p.kept.keys[hash%uint32(len(p.kept.keys))]
	m.Lock()
	return m.Unlock
}

// need says what an operation does to the volume.
type need int

const (
	reads need = iota
	deletes
	writes
)

func (p *place) allows(n need) error {
	switch {
	case n == reads:
		return nil
	case p.readOnly:
		return accessDenied("This S3 key may only read.")
	case p.folder.ReadOnly:
		return accessDenied("The volume cannot be written now.")
	case n == writes && p.volume.ReadOnly:
		return accessDenied("The volume holds more than its size and can only be read. Delete objects or make it larger.")
	}
	return nil
}

// answer sends a document of XML.
func (x *exchange) answer(status int, v any) {
	raw, err := xml.Marshal(v)
	if err != nil {
		x.h.log.Error("s3 answer", "request", x.id, "error", err)
		status, raw = http.StatusInternalServerError, nil
	}
	if x.begun {
		_, _ = x.w.Write(raw)
		return
	}
	x.w.Header().Set("Content-Type", "application/xml")
	x.begin(status)
	_, _ = io.WriteString(x.w, xml.Header)
	_, _ = x.w.Write(raw)
}

// awaken gives the client new time: to take something of the answer, and to send something of the body where one is to
// come. net/http waits for the rest of a body also after the handler is done.
func (x *exchange) awaken(body bool) {
	now := time.Now()
	// A recorder of a test has no deadlines.
	_ = x.control.SetWriteDeadline(now.Add(2 * x.h.limits.Stall))
	if body {
		_ = x.control.SetReadDeadline(now.Add(x.h.limits.Stall + x.h.limits.Stall/8))
	}
}

// begin sends the answer's head. The time that the client has to take the answer begins here, however long its body took.
func (x *exchange) begin(status int) {
	x.begun = true
	x.awaken(false)
	x.w.WriteHeader(status)
}

func (x *exchange) empty(status int) error {
	x.begin(status)
	return nil
}

// patiently runs work that may take minutes. After a while the answer's head is sent, then a space now and then, so that
// the client waits; an error is in the answer's body then, as S3 has it.
func (x *exchange) patiently(work func() (any, error)) error {
	type result struct {
		v   any
		err error
	}
	done := make(chan result, 1)
	go func() {
		r := result{err: errors.New("the work panicked")}
		defer func() {
			_ = recover() // as net/http does for a handler
			done <- r
		}()
		r.v, r.err = work()
	}()
	tick := time.NewTicker(x.h.limits.Stall / 6)
	defer tick.Stop()
	for {
		select {
		case r := <-done:
			if r.err != nil && x.begun {
				f := faultOf(r.err)
				x.answer(f.status, errorXML{Code: f.code, Message: f.message, RequestID: x.id})
			}
			if r.err != nil {
				return r.err
			}
			x.answer(http.StatusOK, r.v)
			return nil
		case <-tick.C:
			// A client that is gone does not end the work: it may ask for the result again.
			x.awaken(false)
			text := " "
			if !x.begun {
				x.w.Header().Set("Content-Type", "application/xml")
				x.begin(http.StatusOK)
				text = xml.Header
			}
			_, _ = io.WriteString(x.w, text)
			_ = x.control.Flush()
		}
	}
}
