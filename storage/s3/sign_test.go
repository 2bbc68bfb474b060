package s3

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
)

// The examples of "Authenticating Requests (AWS Signature Version 4)" in the S3 API reference.
const (
	awsSecret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
	awsHost   = "https://examplebucket.s3.amazonaws.com"
	awsScope  = "Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request"
)

func TestPublishedSignatures(t *testing.T) {
	key := testSigningKey(awsSecret, "20130524", "us-east-1")
	tests := []struct {
		name, method, target, signed, signature, payload string
		header                                           []string
	}{
		{
			"get object", "GET", "/test.txt", "host;range;x-amz-content-sha256;x-amz-date",
			"f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41", emptySHA256,
			[]string{"Range", "bytes=0-9"},
		},
		{
			"put object", "PUT", "/test$file.text", "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
			"98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd", "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
			[]string{"Date", "Fri, 24 May 2013 00:00:00 GMT", "X-Amz-Storage-Class", "REDUCED_REDUNDANCY"},
		},
		{
			"lifecycle", "GET", "/?lifecycle", "host;x-amz-content-sha256;x-amz-date",
			"fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543", emptySHA256, nil,
		},
		{
			"list", "GET", "/?max-keys=2&prefix=J", "host;x-amz-content-sha256;x-amz-date",
			"34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7", emptySHA256, nil,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := http.NewRequest(tt.method, awsHost+tt.target, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header = headers(tt.header...)
			r.Header.Set("X-Amz-Date", "20130524T000000Z")
			r.Header.Set("X-Amz-Content-Sha256", tt.payload)
			r.Header.Set("Authorization", "AWS4-HMAC-SHA256 "+awsScope+",SignedHeaders="+tt.signed+",Signature="+tt.signature)
			sig, err := parseSignature(r, r.URL.Query())
			if err != nil {
				t.Fatal(err)
			}
			if err := sig.verify(r, r.URL.Query(), key); err != nil {
				t.Error(err)
			}
			r.Header.Set("X-Amz-Date", "20130524T000001Z")
			if sig, err = parseSignature(r, r.URL.Query()); err != nil {
				t.Fatal(err)
			}
			if sig.verify(r, r.URL.Query(), key) == nil {
				t.Error("a changed header passes")
			}
		})
	}
}

func TestPublishedPresignedURL(t *testing.T) {
	r, err := http.NewRequest("GET", awsHost+"/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=86400&X-Amz-SignedHeaders=host&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404", nil)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := parseSignature(r, r.URL.Query())
	if err != nil {
		t.Fatal(err)
	}
	if err := sig.verify(r, r.URL.Query(), testSigningKey(awsSecret, "20130524", "us-east-1")); err != nil {
		t.Error(err)
	}
	at := time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		now  time.Time
		good bool
	}{
		{at, true},
		{at.Add(24 * time.Hour), true},
		{at.Add(24*time.Hour + time.Second), false},
		{at.Add(-time.Hour), true},
		{at.Add(-time.Hour - time.Second), false},
	} {
		if err := sig.timely(tt.now); (err == nil) != tt.good {
			t.Errorf("at %s: %v", tt.now, err)
		}
	}
}

const (
	awsStreamSeed = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
	awsChunk1     = "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"
	awsChunk2     = "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"
	awsChunk3     = "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9"
)

func awsStream(t *testing.T, seed, payload string) *signature {
	t.Helper()
	s := &signature{date: "20130524", region: "us-east-1", stamp: "20130524T000000Z", payload: payload}
	if problem := s.fill("AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request", "host", seed); problem != "" {
		t.Fatal(problem)
	}
	s.signingKey = testSigningKey(awsSecret, "20130524", "us-east-1")
	return s
}

func TestPublishedChunks(t *testing.T) {
	a := func(n int) string { return strings.Repeat("a", n) }
	plain := "10000;chunk-signature=" + awsChunk1 + "\r\n" + a(65536) + "\r\n400;chunk-signature=" + awsChunk2 + "\r\n" + a(1024) + "\r\n0;chunk-signature=" + awsChunk3 + "\r\n\r\n"
	trailing := "10000;chunk-signature=b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2\r\n" + a(65536) +
		"\r\n400;chunk-signature=1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7\r\n" + a(1024) +
		"\r\n0;chunk-signature=2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992\r\nx-amz-checksum-crc32c:sOO8/Q==\r\n" +
		"x-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n"
	for _, tt := range []struct{ name, seed, payload, body string }{
		{"plain", awsStreamSeed, streamingPayload, plain},
		{"trailer", "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e", streamingPayloadTrailer, trailing},
	} {
		t.Run(tt.name, func(t *testing.T) {
			read := func(body string) error {
				raw, err := io.ReadAll(newChunks(strings.NewReader(body), awsStream(t, tt.seed, tt.payload), 66560))
				if err == nil && string(raw) != a(66560) {
					err = errors.New("wrong content")
				}
				return err
			}
			if err := read(tt.body); err != nil {
				t.Fatal(err)
			}
			for _, broken := range []string{
				strings.Replace(tt.body, "aaaa", "aaba", 1),
				strings.Replace(tt.body, "400;", "3ff;", 1),
				tt.body[:len(tt.body)/2],
				tt.body[:len(tt.body)-70],
				tt.body + "x",
				strings.Replace(tt.body, "sOO8/Q==", "sOO8/A==", 1) + "y",
			} {
				if read(broken) == nil {
					t.Error("a broken body passes")
				}
			}
		})
	}
}

func TestCRC64NVME(t *testing.T) {
	sum := checksums["crc64nvme"]()
	_, _ = io.WriteString(sum, "123456789")
	if !bytes.Equal(sum.Sum(nil), []byte{0xae, 0x8b, 0x14, 0x86, 0x0a, 0x79, 0x98, 0x88}) {
		t.Errorf("%x", sum.Sum(nil))
	}
}

func TestWhoIsRefused(t *testing.T) {
	f := newFixture(t)
	f.put("a", "1")
	get := call{method: "GET", path: "/vol1/a"}
	with := func(change func(*call)) call {
		c := get
		change(&c)
		return c
	}
	authorization := func(value string) call {
		return with(func(c *call) { c.change = func(r *http.Request) { r.Header.Set("Authorization", value) } })
	}
	tests := []struct {
		name   string
		call   call
		status int
		code   string
	}{
		{"unsigned", with(func(c *call) { c.change = func(r *http.Request) { r.Header.Del("Authorization") } }), 403, "AccessDenied"},
		{"version 2", authorization("AWS user_test:abcdef"), 400, "InvalidRequest"},
		{"an access key with a space", authorization("AWS4-HMAC-SHA256 Credential=a key/20260102/EU-RO-1/s3/aws4_request, SignedHeaders=host, Signature=" + emptySHA256), 400, "AuthorizationHeaderMalformed"},
		{"host is not signed", authorization("AWS4-HMAC-SHA256 Credential=user_test/20260102/EU-RO-1/s3/aws4_request, SignedHeaders=x-amz-date, Signature=" + emptySHA256), 400, "AuthorizationHeaderMalformed"},
		{"a header twice", with(func(c *call) {
			c.header = headers("Content-Type", "text/a")
			c.change = func(r *http.Request) { r.Header.Add("Content-Type", "text/b") }
		}), 403, "SignatureDoesNotMatch"},
		{"HEAD signed as GET", with(func(c *call) { c.change = func(r *http.Request) { r.Method = http.MethodHead } }), 403, ""},
		{"nonsense", authorization("AWS4-HMAC-SHA256 nonsense"), 400, "AuthorizationHeaderMalformed"},
		{"other secret", with(func(c *call) { c.secret = "other" }), 403, "SignatureDoesNotMatch"},
		{"other region", with(func(c *call) { c.region = "us-east-1" }), 400, "AuthorizationHeaderMalformed"},
		{"too old", with(func(c *call) { c.at = time.Now().Add(-61 * time.Minute) }), 403, "RequestTimeTooSkewed"},
		{"too new", with(func(c *call) { c.at = time.Now().Add(61 * time.Minute) }), 403, "RequestTimeTooSkewed"},
		{"old but good", with(func(c *call) { c.at = time.Now().Add(-59 * time.Minute) }), 200, ""},
		{"unsigned amz header", with(func(c *call) {
			c.change = func(r *http.Request) { r.Header.Set("X-Amz-Meta-A", "1") }
		}), 403, "AccessDenied"},
		{"other path", with(func(c *call) { c.change = func(r *http.Request) { r.URL.Path = "/vol2/a" } }), 403, "SignatureDoesNotMatch"},
		{"other's bucket", call{method: "GET", path: "/vol9/a"}, 404, "NoSuchBucket"},
		{"no payload hash", with(func(c *call) { c.change = func(r *http.Request) { r.Header.Del("X-Amz-Content-Sha256") } }), 400, "InvalidRequest"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := *f
			f.t = t
			got := f.want(tt.call, tt.status, tt.code)
			if tt.name == "other region" && !bytes.Contains(got.body, []byte("<Region>"+testRegion+"</Region>")) {
				t.Errorf("no region in %s", got.body)
			}
		})
	}
	f.key = "user_nobody"
	f.want(get, 403, "InvalidAccessKeyId")
}

func TestPresigned(t *testing.T) {
	f := newFixture(t)
	presign := func(method, path string, seconds string, at time.Time) reply {
		stamp := at.UTC().Format("20060102T150405Z")
		scope := stamp[:8] + "/" + testRegion + "/s3/aws4_request"
		q := testQuery("X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=" + testKey + "/" + scope + "&X-Amz-Date=" + stamp + "&X-Amz-Expires=" + seconds + "&X-Amz-SignedHeaders=host&response-content-type=text/x")
		u, _ := url.Parse(f.url)
		text := method + "\n" + testPath(path) + "\n" + q + "\nhost:" + u.Host + "\n\nhost\nUNSIGNED-PAYLOAD"
		sum := testMAC(testSigningKey(testSecret, stamp[:8], testRegion), "AWS4-HMAC-SHA256\n"+stamp+"\n"+scope+"\n"+testHex([]byte(text)))
		var body io.Reader
		if method == "PUT" {
			body = strings.NewReader("presigned")
		}
		r, err := http.NewRequest(method, f.url+testPath(path)+"?"+q+"&X-Amz-Signature="+hexOf(sum), body)
		if err != nil {
			t.Fatal(err)
		}
		return f.send(r)
	}
	now := time.Now()
	if got := presign("PUT", "/vol1/a b+c", "60", now); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	got := presign("GET", "/vol1/a b+c", "604800", now.Add(-6*24*time.Hour))
	if got.status != 200 || string(got.body) != "presigned" || got.header.Get("Content-Type") != "text/x" {
		t.Errorf("%d %s %v", got.status, got.body, got.header)
	}
	if got := presign("GET", "/vol1/a b+c", "60", now.Add(-2*time.Minute)); got.status != 403 || got.code() != "AccessDenied" {
		t.Errorf("expired: %d %s", got.status, got.body)
	}
	if got := presign("GET", "/vol1/a b+c", "604801", now); got.status != 400 {
		t.Errorf("more than a week: %d %s", got.status, got.body)
	}
}

func hexOf(b []byte) string {
	const digits = "0123456789abcdef"
	var out []byte
	for _, c := range b {
		out = append(out, digits[c>>4], digits[c&15])
	}
	return string(out)
}

func FuzzSignature(f *testing.F) {
	f.Add("AWS4-HMAC-SHA256 "+awsScope+",SignedHeaders=host;range,Signature="+awsChunk1, "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Signature=00", "/a")
	f.Add("", "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AK%2F20130524%2Fr%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=1&X-Amz-SignedHeaders=host&X-Amz-Signature="+awsChunk1, "/b%20c")
	key := []byte("nobody has this one")
	f.Fuzz(func(t *testing.T, header, query, path string) {
		r := &http.Request{Method: "GET", URL: &url.URL{Path: path, RawQuery: query}, Header: http.Header{}, Host: "h"}
		if header != "" {
			r.Header.Set("Authorization", header)
		}
		r.Header.Set("X-Amz-Date", "20130524T000000Z")
		r.Header.Set("X-Amz-Content-Sha256", emptySHA256)
		values, err := url.ParseQuery(query)
		if err != nil {
			return
		}
		sig, err := parseSignature(r, values)
		if err != nil {
			return
		}
		_ = sig.timely(time.Now())
		if sig.verify(r, values, key) == nil {
			t.Fatal("a signature without the key")
		}
	})
}

func FuzzChunks(f *testing.F) {
	f.Add([]byte("5\r\nhello\r\n0\r\nx-amz-checksum-crc32:AAAA\r\n\r\n"), int64(5), false)
	f.Add([]byte("5;chunk-signature="+awsChunk1+"\r\nhello\r\n0;chunk-signature="+awsChunk1+"\r\n\r\n"), int64(5), true)
	f.Fuzz(func(t *testing.T, raw []byte, size int64, signed bool) {
		payload := streamingUnsigned
		if signed {
			payload = streamingPayload
		}
		out, err := io.ReadAll(newChunks(bytes.NewReader(raw), awsStream(t, awsStreamSeed, payload), size))
		if int64(len(out)) > max(size, 0) {
			t.Fatalf("%d bytes of %d", len(out), size)
		}
		if err == nil && signed {
			t.Fatal("chunks without the key")
		}
	})
}
