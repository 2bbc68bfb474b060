package objects

import (
	"net/url"
	"testing"
	"time"
)

// TestALinkIsWrittenAsItIsSigned looks at how names and values are encoded; test/console has a real server check the signature.
func TestALinkIsWrittenAsItIsSigned(t *testing.T) {
	b := Bucket{
		Endpoint: "https://examplebucket.s3.amazonaws.com", Region: "us-east-1", Name: "b", AccessKey: "AKIAIOSFODNN7EXAMPLE",
		Secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
	}
	at := time.Date(2013, 5, 24, 0, 0, 0, 0, time.UTC)
	got := b.Link("GET", "a b/ü+%&?.txt", url.Values{"prefix": {"x y/+"}}, at, time.Minute)
	want := "https://examplebucket.s3.amazonaws.com/b/a%20b/%C3%BC%2B%25%26%3F.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&" +
		"X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F20130524%2Fus-east-1%2Fs3%2Faws4_request&X-Amz-Date=20130524T000000Z&X-Amz-Expires=60&" +
		"X-Amz-SignedHeaders=host&prefix=x%20y%2F%2B&X-Amz-Signature="
	if len(got) != len(want)+64 || got[:len(want)] != want {
		t.Errorf("the link is\n%s, not\n%s", got, want)
	}
}
