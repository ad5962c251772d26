// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"time"
)

const (
	maxChainHead    = 16 << 10 // of the proxy's answer, interim ones included
	maxInterim      = 5
	maxCredentials  = 1024
	maxChainCA      = 8 << 20
	reasonChainWord = "upstream-proxy-"
)

// Reasons for trouble with the operator's proxy. None of them is a denial by policy (case P2): name, port and server
// name were judged here before the proxy was asked.
const (
	reasonChainDNS         = reasonChainWord + "dns"         // its name has no address, or the resolver failed
	reasonChainAddress     = reasonChainWord + "address"     // its name leads where no proxy may be
	reasonChainRefused     = reasonChainWord + "refused"     // nothing listens there
	reasonChainUnreachable = reasonChainWord + "unreachable" // no way there, or the connection broke
	reasonChainTimeout     = reasonChainWord + "timeout"     // neither connected nor answered in time
	reasonChainTLS         = reasonChainWord + "tls"         // no TLS, or a certificate that is not trusted
	reasonChainAuth        = reasonChainWord + "auth"        // 407
	reasonChainDenied      = reasonChainWord + "denied"      // any other 4xx: that proxy's policy, not ours
	reasonChainFailure     = reasonChainWord + "failure"     // 5xx: the proxy did not reach the host
	reasonChainAnswer      = reasonChainWord + "answer"      // not an answer to a CONNECT
)

const chainRemedy = "the policy allows this destination; the trouble is with the operator's proxy (upstream_proxy) or behind it"

// chainRanges are special ranges in which a proxy may be, because the operator named it: addresses for use inside a
// network. Loopback, link-local (metadata services), multicast and reserved addresses stay barred, and so does
// whatever deny_cidrs lists (cables, uplink, the host itself).
var chainRanges = prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10",
	"192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "198.18.0.0/15", "fc00::/7")

// Chain is the operator's proxy, through which every allowed tunnel goes. It is given the name as it was judged, and
// resolves it: the address check of this proxy moves there.
type Chain struct {
	// URL is http://host:port or https://host:port (TLS to the proxy).
	URL string `json:"url,omitempty"`
	// CAFile holds the authorities for https; an image without any has no others.
	CAFile string `json:"ca_file,omitempty"`
	// CredentialsFile holds "user:password" (RFC 7617); empty means that none are sent.
	CredentialsFile string `json:"credentials_file,omitempty"`

	name   string     // to look up; "" when literal is set
	addr   netip.Addr // a literal
	port   uint16
	tls    *tls.Config // nil for http
	header string      // the Proxy-Authorization line, or ""
}

// provision reads everything once, at start; anything doubtful is an error, so nothing is served. No error holds a
// byte of the credentials.
func (h *Chain) provision() error {
	u, err := url.Parse(h.URL)
	if err != nil || u.User != nil || u.Path != "" || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" {
		return errors.New("chain.url: give scheme, host and port, and nothing else")
	}
	if u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("chain.url: scheme %q: use http or https", u.Scheme)
	}
	var ok bool
	if h.port, ok = parsePort(u.Port()); !ok {
		return errors.New("chain.url: a port is needed")
	}
	if a, notLiteral := netip.ParseAddr(u.Hostname()); notLiteral == nil {
		h.addr = a
	} else {
		var why string
		if h.name, why = canonicalName(u.Hostname()); why != "" || h.name != u.Hostname() {
			return fmt.Errorf("chain.url: %q is neither an address nor a canonical host name", u.Hostname())
		}
	}
	if u.Scheme == "https" {
		if h.tls, err = chainTLS(u.Hostname(), h.CAFile); err != nil {
			return err
		}
	}
	if h.CredentialsFile != "" {
		h.header, err = basicHeader(h.CredentialsFile)
	}
	return err
}

func chainTLS(host, caFile string) (*tls.Config, error) {
	pem, err := readBounded(caFile, maxChainCA)
	if err != nil {
		return nil, fmt.Errorf("chain.ca_file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("chain.ca_file: %s holds no certificate", caFile)
	}
	return &tls.Config{ServerName: host, RootCAs: pool, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}, nil
}

// basicHeader renders the credentials (RFC 7617). One final line break is the file's (case S2).
func basicHeader(path string) (string, error) {
	b, err := readBounded(path, maxCredentials+2)
	if err != nil {
		return "", fmt.Errorf("chain.credentials_file: %w", err)
	}
	b = bytes.TrimSuffix(bytes.TrimSuffix(b, []byte("\n")), []byte("\r"))
	if i := bytes.IndexByte(b, ':'); i < 1 || len(b) > maxCredentials {
		return "", fmt.Errorf("chain.credentials_file: %s does not hold user:password", path)
	}
	for _, c := range b {
		if c < 0x20 || c == 0x7f {
			return "", fmt.Errorf("chain.credentials_file: %s holds a control character", path)
		}
	}
	return "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString(b) + "\r\n", nil
}

func readBounded(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(b)) > most {
		err = fmt.Errorf("%s is longer than %d bytes", path, most)
	}
	return b, err
}

// through opens a tunnel to an allowed destination by way of the operator's proxy.
func (c *Connect) through(ctx context.Context, a authority, d *decision) (net.Conn, *refusal) {
	h := c.Chain
	usable, no := c.chainAddresses(ctx)
	if no != nil {
		return nil, no
	}
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.DialTimeout))
	defer cancel()
	raw, err := dialFirst(ctx, usable, h.port, d)
	if err != nil {
		return nil, chainRefusal(chainDialReason(ctx, err), "")
	}
	conn, no := h.tunnel(ctx, raw, a)
	if no != nil {
		_ = raw.Close()
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			no = chainRefusal(reasonChainTimeout, no.detail)
		}
		return nil, no
	}
	return conn, nil
}

// chainAddresses finds where the proxy is. Its name is the one name that is looked up when there is a chain.
func (c *Connect) chainAddresses(ctx context.Context) ([]netip.Addr, *refusal) {
	addrs := []netip.Addr{c.Chain.addr}
	if c.Chain.name != "" {
		look, cancel := context.WithTimeout(ctx, time.Duration(c.DNSTimeout))
		defer cancel()
		var no *refusal
		if addrs, no = c.lookup.resolve(look, c.Chain.name); no != nil {
			return nil, chainRefusal(reasonChainDNS, no.detail)
		}
	}
	usable, bad := sift(addrs, chainRanges, c.policy.deny)
	if len(usable) == 0 {
		return nil, chainRefusal(reasonChainAddress, joinBarred(bad))
	}
	return usable, nil
}

func chainRefusal(reason, detail string) *refusal {
	return refuse(reason, detail).at("", chainRemedy)
}

func chainDialReason(ctx context.Context, err error) string {
	switch dialReason(ctx, err) {
	case reasonInternal:
		return reasonInternal
	case reasonUpstreamRefused:
		return reasonChainRefused
	case reasonUpstreamTimeout:
		return reasonChainTimeout
	}
	return reasonChainUnreachable
}

// tunnel speaks TLS when the proxy does, and asks it for the destination. The context's end ends every wait.
func (h *Chain) tunnel(ctx context.Context, raw net.Conn, a authority) (net.Conn, *refusal) {
	unhook := context.AfterFunc(ctx, func() { _ = raw.SetDeadline(time.Unix(1, 0)) })
	defer unhook()
	conn := raw
	if h.tls != nil {
		secured := tls.Client(raw, h.tls)
		if err := secured.HandshakeContext(ctx); err != nil {
			return nil, chainRefusal(reasonChainTLS, printable(err.Error()))
		}
		conn = secured
	}
	target := a.name + ":" + strconv.Itoa(int(a.port))
	if _, err := io.WriteString(conn, "CONNECT "+target+" HTTP/1.1\r\nHost: "+target+"\r\n"+h.header+"\r\n"); err != nil {
		return nil, chainRefusal(reasonChainUnreachable, "the connection broke")
	}
	ahead, no := readChainAnswer(conn)
	if no != nil {
		return nil, no
	}
	if !unhook() { // the context ended meanwhile, and with it the deadline was set
		return nil, chainRefusal(reasonChainTimeout, "")
	}
	return &chained{Conn: conn, raw: raw, from: io.MultiReader(bytes.NewReader(ahead), conn)}, nil
}

// readChainAnswer reads the head of the proxy's answer and returns what came behind it. Nothing of its text is passed
// on or logged but the status: a proxy may echo what it was sent.
func readChainAnswer(conn io.Reader) ([]byte, *refusal) {
	limited := &io.LimitedReader{R: conn, N: maxChainHead}
	br := bufio.NewReader(limited)
	asked := &http.Request{Method: http.MethodConnect}
	for range maxInterim {
		resp, err := http.ReadResponse(br, asked)
		switch {
		case err != nil && limited.N == 0:
			return nil, chainRefusal(reasonChainAnswer, fmt.Sprintf("its answer has more than %d bytes of header", maxChainHead))
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return nil, chainRefusal(reasonChainAnswer, "it closed the connection without an answer")
		case err != nil && timedOut(err):
			return nil, chainRefusal(reasonChainTimeout, "it did not answer in time")
		case err != nil && isNetError(err):
			return nil, chainRefusal(reasonChainUnreachable, "the connection broke")
		case err != nil:
			return nil, chainRefusal(reasonChainAnswer, "its answer is not HTTP")
		case resp.StatusCode >= 200 && resp.StatusCode <= 299: // RFC 9110 section 9.3.6: no body, whatever the header says
			return readAhead(br), nil
		case resp.StatusCode >= 200 || resp.StatusCode == http.StatusSwitchingProtocols:
			return nil, chainRefusal(chainStatusReason(resp.StatusCode), "it answered with status "+strconv.Itoa(resp.StatusCode))
		}
	}
	return nil, chainRefusal(reasonChainAnswer, "too many interim answers")
}

func isNetError(err error) bool {
	var op *net.OpError
	return errors.As(err, &op)
}

func chainStatusReason(status int) string {
	switch {
	case status == http.StatusProxyAuthRequired:
		return reasonChainAuth
	case status == http.StatusRequestTimeout:
		return reasonChainTimeout
	case status >= 400 && status <= 499:
		return reasonChainDenied
	case status == http.StatusGatewayTimeout:
		return reasonChainTimeout
	case status >= 500 && status <= 599:
		return reasonChainFailure
	}
	return reasonChainAnswer
}

// chained is a tunnel through the proxy. Close cuts the TCP connection: a TLS alert could wait for a peer that does
// not read.
type chained struct {
	net.Conn
	raw  net.Conn
	from io.Reader // begins with what the proxy sent behind its answer
}

func (c *chained) Read(p []byte) (int, error) { return c.from.Read(p) }
func (c *chained) CloseWrite() error          { return closeWriteOf(c.Conn)() }
func (c *chained) Close() error               { return c.raw.Close() }
