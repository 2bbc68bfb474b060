package s3

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	algorithm   = "AWS4-HMAC-SHA256"
	stampFormat = "20060102T150405Z"
	emptySHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

	unsignedPayload         = "UNSIGNED-PAYLOAD"
	streamingPayload        = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
	streamingPayloadTrailer = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
	streamingUnsigned       = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
)

// signature is what a request says about how it was signed.
type signature struct {
	key     string // access key
	date    string // of the scope
	region  string
	headers []string // signed, lower case, in order
	value   []byte
	at      time.Time
	stamp   string // at, as it was sent
	payload string // hash of the body or one of the words for it
	expires time.Duration
	query   bool // presigned

	signingKey []byte // once verified
}

func (s *signature) scope() string {
	return s.date + "/" + s.region + "/s3/aws4_request"
}

func badHeader(message string) *fault {
	return refuse(http.StatusBadRequest, "AuthorizationHeaderMalformed", "The authorization header is malformed; "+message)
}

func badQuery(message string) *fault {
	return refuse(http.StatusBadRequest, "AuthorizationQueryParametersError", message)
}

// parseSignature reads the signature of a request from its header or query.
func parseSignature(r *http.Request, query url.Values) (*signature, error) {
	lines := r.Header.Values("Authorization")
	inQuery := query.Has("X-Amz-Algorithm") || query.Has("X-Amz-Signature") || query.Has("X-Amz-Credential")
	v2 := refuse(http.StatusBadRequest, "InvalidRequest", "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.")
	switch {
	case len(lines) > 1, len(lines) == 1 && inQuery:
		return nil, invalid("Only one auth mechanism allowed.")
	case inQuery:
		return parsePresigned(r, query)
	case len(lines) == 1 && strings.HasPrefix(lines[0], algorithm):
		return parseHeader(r, lines[0])
	case len(lines) == 1, query.Has("AWSAccessKeyId"), query.Has("Signature"):
		return nil, v2
	}
	return nil, accessDenied("The request is not signed.")
}

func parseHeader(r *http.Request, line string) (*signature, error) {
	if len(line) > 4096 {
		return nil, badHeader("it is too long.")
	}
	s := &signature{}
	rest, ok := strings.CutPrefix(line, algorithm+" ")
	if !ok {
		return nil, badHeader("the algorithm is followed by a space.")
	}
	seen := map[string]string{}
	for field := range strings.SplitSeq(rest, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(field), "=")
		if _, twice := seen[name]; !ok || twice {
			return nil, badHeader("it needs Credential, SignedHeaders and Signature once each.")
		}
		seen[name] = value
	}
	if len(seen) != 3 {
		return nil, badHeader("it needs Credential, SignedHeaders and Signature once each.")
	}
	if problem := s.fill(seen["Credential"], seen["SignedHeaders"], seen["Signature"]); problem != "" {
		return nil, badHeader(problem)
	}
	s.payload = r.Header.Get("X-Amz-Content-Sha256")
	if s.payload == "" {
		return nil, refuse(http.StatusBadRequest, "InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
	}
	if !validPayload(s.payload) {
		return nil, invalid("x-amz-content-sha256 must be UNSIGNED-PAYLOAD, a STREAMING- value or a valid sha256 value.")
	}
	return s, s.dated(r)
}

// dated reads the time of a request that is signed in its header.
func (s *signature) dated(r *http.Request) error {
	s.stamp = r.Header.Get("X-Amz-Date")
	at, err := time.Parse(stampFormat, s.stamp)
	if s.stamp == "" {
		at, err = http.ParseTime(r.Header.Get("Date"))
		s.stamp = at.UTC().Format(stampFormat)
	}
	if err != nil {
		return accessDenied("AWS authentication requires a valid Date or x-amz-date header.")
	}
	s.at = at.UTC()
	if s.at.Format("20060102") != s.date {
		return badHeader("the date of the credential is not that of the request.")
	}
	return nil
}

func parsePresigned(r *http.Request, query url.Values) (*signature, error) {
	for _, name := range []string{"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature"} {
		if len(query[name]) != 1 || query.Get(name) == "" {
			return nil, badQuery("A presigned request needs " + name + " once.")
		}
	}
	if query.Get("X-Amz-Algorithm") != algorithm {
		return nil, badQuery("X-Amz-Algorithm only supports " + algorithm + ".")
	}
	s := &signature{query: true, stamp: query.Get("X-Amz-Date"), payload: unsignedPayload}
	if problem := s.fill(query.Get("X-Amz-Credential"), query.Get("X-Amz-SignedHeaders"), query.Get("X-Amz-Signature")); problem != "" {
		return nil, badQuery("Error parsing the query; " + problem)
	}
	seconds, err := strconv.ParseInt(query.Get("X-Amz-Expires"), 10, 64)
	if err != nil || seconds < 1 || seconds > int64(maxPresign/time.Second) {
		return nil, badQuery("X-Amz-Expires must be from 1 second to a week (604800).")
	}
	s.expires = time.Duration(seconds) * time.Second
	if s.at, err = time.Parse(stampFormat, s.stamp); err != nil || s.at.Format("20060102") != s.date {
		return nil, badQuery("X-Amz-Date must be in the ISO8601 form and of the credential's date.")
	}
	for _, sent := range []string{r.Header.Get("X-Amz-Content-Sha256"), query.Get("X-Amz-Content-Sha256")} {
		if sent != "" {
			s.payload = sent
		}
	}
	if !validPayload(s.payload) {
		return nil, invalid("x-amz-content-sha256 must be UNSIGNED-PAYLOAD, a STREAMING- value or a valid sha256 value.")
	}
	return s, nil
}

// fill reads what header and query have in common and returns what is wrong with it.
func (s *signature) fill(credential, headers, value string) string {
	parts := strings.Split(credential, "/")
	if len(parts) != 5 || parts[0] == "" || len(parts[0]) > 128 || len(parts[1]) != 8 || parts[3] != "s3" || parts[4] != "aws4_request" {
		return `the credential must be of the form "ACCESS-KEY/YYYYMMDD/REGION/s3/aws4_request".`
	}
	if strings.ContainsFunc(credential, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
		return "the credential must be printable."
	}
	s.key, s.date, s.region = parts[0], parts[1], parts[2]
	s.headers = strings.Split(headers, ";")
	if len(s.headers) > 64 || !slices.IsSorted(s.headers) || !slices.Contains(s.headers, "host") {
		return "the signed headers must be sorted and hold host."
	}
	if len(slices.Compact(slices.Clone(s.headers))) != len(s.headers) || headers != strings.ToLower(headers) {
		return "the signed headers must be in lower case, once each."
	}
	var err error
	if s.value, err = hex.DecodeString(value); err != nil || len(s.value) != sha256.Size {
		return "the signature must be 64 hexadecimal digits."
	}
	return ""
}

func validPayload(payload string) bool {
	switch payload {
	case unsignedPayload, streamingPayload, streamingPayloadTrailer, streamingUnsigned:
		return true
	}
	sum, err := hex.DecodeString(payload)
	return err == nil && len(sum) == sha256.Size
}

// timely checks that a request was signed lately, or that its URL holds still.
func (s *signature) timely(now time.Time) error {
	switch {
	case s.at.After(now.Add(maxSkew)):
		if s.query {
			return accessDenied("Request is not valid yet.")
		}
	case s.query && now.After(s.at.Add(s.expires)):
		return accessDenied("Request has expired.")
	case s.query, !s.at.Before(now.Add(-maxSkew)):
		return nil
	}
	return refuse(http.StatusForbidden, "RequestTimeTooSkewed", "The difference between the request time and the server's time is too large.")
}

// verify checks the signature itself and that it covers what it must.
func (s *signature) verify(r *http.Request, query url.Values, signingKey []byte) error {
	for name := range r.Header {
		low := strings.ToLower(name)
		if strings.HasPrefix(low, "x-amz-") && !slices.Contains(s.headers, low) {
			return accessDenied("There were headers present in the request which were not signed: " + low)
		}
	}
	canonical := sha256.Sum256([]byte(s.canonical(r, query)))
	text := algorithm + "\n" + s.stamp + "\n" + s.scope() + "\n" + hex.EncodeToString(canonical[:])
	if !hmac.Equal(mac(signingKey, text), s.value) {
		return refuse(http.StatusForbidden, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided. Check your key and signing method.")
	}
	s.signingKey = signingKey
	return nil
}

// canonical returns the text of a request that is signed.
func (s *signature) canonical(r *http.Request, query url.Values) string {
	var b strings.Builder
	b.WriteString(r.Method + "\n" + escape(r.URL.Path, true) + "\n")
	var pairs []string
	for name, values := range query {
		if s.query && name == "X-Amz-Signature" {
			continue
		}
		for _, v := range values {
			pairs = append(pairs, escape(name, false)+"="+escape(v, false))
		}
	}
	// The equals sign sorts after some characters of names, so names are compared alone.
	slices.SortFunc(pairs, func(a, b string) int {
		an, av, _ := strings.Cut(a, "=")
		bn, bv, _ := strings.Cut(b, "=")
		if c := strings.Compare(an, bn); c != 0 {
			return c
		}
		return strings.Compare(av, bv)
	})
	b.WriteString(strings.Join(pairs, "&") + "\n")
	for _, name := range s.headers {
		b.WriteString(name + ":" + signedHeader(r, name) + "\n")
	}
	b.WriteString("\n" + strings.Join(s.headers, ";") + "\n" + s.payload)
	return b.String()
}

// signedHeader returns a header's value as it is signed. Some are no longer among the headers of a server's request.
func signedHeader(r *http.Request, name string) string {
	switch name {
	case "host":
		return r.Host
	case "content-length":
		return strconv.FormatInt(r.ContentLength, 10)
	case "transfer-encoding":
		return strings.Join(r.TransferEncoding, ",")
	}
	values := slices.Clone(r.Header.Values(name))
	for i, v := range values {
		values[i] = strings.Join(strings.FieldsFunc(v, func(r rune) bool { return r == ' ' || r == '\t' }), " ")
	}
	return strings.Join(values, ",")
}

// escape percent-encodes as AWS does for signatures.
func escape(s string, keepSlash bool) string {
	const digits = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(s))
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-_.~", c) >= 0, c == '/' && keepSlash:
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(digits[c>>4])
			b.WriteByte(digits[c&15])
		}
	}
	return b.String()
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}
