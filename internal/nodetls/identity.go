package nodetls

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// Identity is a node's certificate and whom it believes.
type Identity struct {
	node        string
	certificate tls.Certificate
	authority   *x509.CertPool
}

// LoadIdentity reads a node's certificate, its key, and the authority's certificate.
func LoadIdentity(certificateFile, keyFile, authorityFile string) (*Identity, error) {
	own, err := tls.LoadX509KeyPair(certificateFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("node's identity: %s, %s: %w", certificateFile, keyFile, err)
	}
	pem, err := os.ReadFile(authorityFile)
	if err != nil {
		return nil, fmt.Errorf("node's identity: %w", err)
	}
	id := &Identity{certificate: own, authority: x509.NewCertPool()}
	if !id.authority.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("node's identity: %s: there is no certificate in it", authorityFile)
	}
	if id.node, err = nodeOf(own.Leaf); err != nil {
		return nil, fmt.Errorf("node's identity: %s: %w", certificateFile, err)
	}
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		// The time is checked when a connection is made: a certificate may be renewed meanwhile.
		if _, err := own.Leaf.Verify(x509.VerifyOptions{Roots: id.authority, KeyUsages: []x509.ExtKeyUsage{use}, CurrentTime: own.Leaf.NotBefore}); err != nil {
			return nil, fmt.Errorf("node's identity: %s is not of the authority %s: %w", certificateFile, authorityFile, err)
		}
	}
	return id, nil
}

// Node is the node's name.
func (id *Identity) Node() string { return id.node }

// Server is the configuration for accepting other nodes. TLS 1.3 only; a peer without a certificate of the authority is refused.
func (id *Identity) Server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{id.certificate}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: id.authority,
		SessionTicketsDisabled: true, // each connection shows its certificate: one that has expired is not admitted by a ticket
	}
}

// Client is the configuration for connecting to a node: a peer that is not this node is refused.
func (id *Identity) Client(node string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{id.certificate}, RootCAs: id.authority, ServerName: node,
	}
}

// Peer returns the name of the node at the other end of a connection whose handshake has ended.
func Peer(state tls.ConnectionState) (string, error) {
	if len(state.VerifiedChains) == 0 {
		return "", errors.New("the peer has shown no certificate that was verified")
	}
	return nodeOf(state.VerifiedChains[0][0])
}

// nodeOf returns the node of a certificate of Issue.
func nodeOf(c *x509.Certificate) (string, error) {
	if len(c.DNSNames) != 1 {
		return "", fmt.Errorf("a certificate with the names %q: a node's has one", c.DNSNames)
	}
	return c.DNSNames[0], CheckNode(c.DNSNames[0])
}
