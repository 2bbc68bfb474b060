package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
)

const tarType = "application/x-tar"

// ReadFiles returns a file or folder of a running pod's container as a tar stream, whose names begin with the last word
// of path, which is absolute. The stream ends with ctx; the caller closes it. Nothing in it may be trusted: the pod
// made it.
func (c *Client) ReadFiles(ctx context.Context, id, path string) (io.ReadCloser, error) {
	var res *http.Response
	err := c.repeat(ctx, true, func() error {
		req, err := c.request(ctx, http.MethodGet, filesPath(id), url.Values{"path": {path}}, nil)
		if err != nil {
			return err
		}
		req.Header.Set("Accept", tarType)
		res, err = c.send(req) //nolint:bodyclose // the caller does
		return err
	})
	if err != nil {
		return nil, err
	}
	if kind, _, _ := mime.ParseMediaType(res.Header.Get("Content-Type")); kind != tarType {
		drain(res)
		return nil, fmt.Errorf("read the files: the answer of %s is not a tar stream", c.Address())
	}
	return &fileStream{ctx: ctx, address: c.Address(), body: res.Body}, nil
}

func filesPath(id string) string { return "/v2/pods/" + word(id) + "/files" }

// fileStream tells a stream that broke off from one that ended.
type fileStream struct {
	ctx     context.Context // of the stream
	address string
	body    io.ReadCloser
}

func (s *fileStream) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	switch {
	case err == nil || errors.Is(err, io.EOF):
		return n, err
	case s.ctx.Err() != nil:
		return n, context.Cause(s.ctx)
	default:
		return n, &Unreachable{Address: s.address, Err: err}
	}
}

func (s *fileStream) Close() error { return s.body.Close() }

// WriteFiles unpacks a tar stream below dir, an absolute path of a folder in a running pod's container. It reads tar to
// its end, unless the API refuses before; tar is closed. Nothing is repeated.
func (c *Client) WriteFiles(ctx context.Context, id, dir string, tar io.ReadCloser) error {
	req, err := c.request(ctx, http.MethodPut, filesPath(id), url.Values{"path": {dir}}, nil)
	if err != nil {
		_ = tar.Close()
		return err
	}
	req.Body, req.ContentLength = tar, -1
	req.Header.Set("Content-Type", tarType)
	req.Header.Set("Expect", "100-continue") // a refusal then comes before the files are sent
	res, err := c.send(req)
	if err != nil {
		return err
	}
	drain(res)
	return nil
}
