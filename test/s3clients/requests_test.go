package s3clients

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

var plain = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// sign signs a request by hand; the query must be in order.
func (s *server) sign(r *http.Request) {
	stamp := time.Now().UTC().Format("20060102T150405Z")
	r.Header.Set("X-Amz-Date", stamp)
	r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
	const names = "host;x-amz-content-sha256;x-amz-date"
	canonical := strings.Join([]string{
		r.Method, r.URL.EscapedPath(), r.URL.RawQuery, "host:" + r.Host, "x-amz-content-sha256:UNSIGNED-PAYLOAD", "x-amz-date:" + stamp, "",
		names, "UNSIGNED-PAYLOAD",
	}, "\n")
	scope := stamp[:8] + "/" + region + "/s3/aws4_request"
	sum := sha256.Sum256([]byte(canonical))
	signature := mac(signingKey(stamp[:8], region), "AWS4-HMAC-SHA256\n"+stamp+"\n"+scope+"\n"+hex.EncodeToString(sum[:]))
	r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential="+accessKey+"/"+scope+", SignedHeaders="+names+", Signature="+hex.EncodeToString(signature))
}

// do makes a request of a client that has nothing but Go.
func (s *server) do(client *http.Client, method, key string, body io.Reader, size int64) (*http.Response, error) {
	u, err := url.Parse(s.url)
	if err != nil {
		return nil, err
	}
	u.Path = "/" + bucket + "/" + key
	r, err := http.NewRequest(method, u.String(), body)
	if err != nil {
		return nil, err
	}
	r.ContentLength = size
	s.sign(r)
	return client.Do(r)
}

func (s *server) put(key, content string) {
	s.t.Helper()
	resp, err := s.do(plain, http.MethodPut, key, strings.NewReader(content), int64(len(content)))
	must(s.t, err)
	defer func() { _ = resp.Body.Close() }()
	if text, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusOK {
		s.t.Fatalf("put %s: %s: %s", key, resp.Status, text)
	}
}

// tryGet returns an object, and else what went wrong.
func (s *server) tryGet(key string) string {
	resp, err := s.do(plain, http.MethodGet, key, nil, 0)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Sprintf("%s: %s %v", resp.Status, text, err)
	}
	return string(text)
}

// unshared runs a program as root of a user namespace with one id.
func unshared(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 0, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids}
	return cmd
}
