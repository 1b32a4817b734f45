// Package nodetls is who the nodes of a cluster are to each other: a small certificate authority, and TLS configurations with which both
// sides of a connection show certificates of it. A certificate is for a node's name. Where a node is, its addresses, does not matter.
//
// It trusts the files that it is given, and nothing that a peer sends.
package nodetls

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The files of an authority's directory, and of a node's.
const (
	AuthorityFile    = "ca.pem"     // the authority's certificate: every node has a copy
	AuthorityKeyFile = "ca-key.pem" // stays where certificates are issued
	NodeFile         = "node.pem"
	NodeKeyFile      = "node-key.pem"
)

const (
	authorityYears = 10
	certificate    = "CERTIFICATE"
	privateKey     = "PRIVATE KEY"
	// A node's clock may be behind the authority's.
	clockTolerance = time.Hour
)

// Authority issues certificates.
type Authority struct {
	certificate *x509.Certificate
	key         ed25519.PrivateKey
}

// CreateAuthority makes an authority, and writes its files to a directory, which must not have one.
func CreateAuthority(dir string, now time.Time) (*Authority, error) {
	return createAuthority(dir, now, false)
}

// ReplaceAuthority is CreateAuthority for a directory that may have one. Certificates of the one before are not believed by nodes that
// have the new one's.
func ReplaceAuthority(dir string, now time.Time) (*Authority, error) {
	return createAuthority(dir, now, true)
}

func createAuthority(dir string, now time.Time, replace bool) (*Authority, error) {
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	template := &x509.Certificate{
		Subject:  pkix.Name{CommonName: "railhead cluster authority"},
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
	}
	der, err := sign(template, template, public, key, now, now.AddDate(authorityYears, 0, 0))
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	encoded, err := encodeKey(key)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	files := []file{{AuthorityKeyFile, encoded, 0o600}, {AuthorityFile, encode(certificate, der), 0o644}}
	if err := writeFiles(dir, files, replace); err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	return LoadAuthority(dir)
}

// LoadAuthority reads the files of CreateAuthority.
func LoadAuthority(dir string) (*Authority, error) {
	der, err := readPEM(filepath.Join(dir, AuthorityFile), certificate)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("authority: %s: %w", filepath.Join(dir, AuthorityFile), err)
	}
	der, err = readPEM(filepath.Join(dir, AuthorityKeyFile), privateKey)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	parsedKey, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("authority: %s: %w", filepath.Join(dir, AuthorityKeyFile), err)
	}
	key, ok := parsedKey.(ed25519.PrivateKey)
	if !ok || !parsed.IsCA || !key.Public().(ed25519.PublicKey).Equal(parsed.PublicKey) {
		return nil, fmt.Errorf("authority: %s: %s and %s are not the two files of one authority", dir, AuthorityFile, AuthorityKeyFile)
	}
	return &Authority{parsed, key}, nil
}

// Issue makes a certificate and a key for a node, as PEM.
func (a *Authority) Issue(node string, now time.Time, valid time.Duration) (certificatePEM, keyPEM []byte, err error) {
	if err := CheckNode(node); err != nil {
		return nil, nil, err
	}
	until := now.Add(valid)
	if valid <= 0 || until.After(a.certificate.NotAfter) {
		return nil, nil, fmt.Errorf("certificate of node %s: valid for %v: must be above 0, and the authority's ends on %s", node, valid,
			a.certificate.NotAfter.Format(time.DateOnly))
	}
	public, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate of node %s: %w", node, err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: node}, DNSNames: []string{node}, KeyUsage: x509.KeyUsageDigitalSignature, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := sign(template, a.certificate, public, a.key, now, until)
	if err != nil {
		return nil, nil, fmt.Errorf("certificate of node %s: %w", node, err)
	}
	if keyPEM, err = encodeKey(key); err != nil {
		return nil, nil, fmt.Errorf("certificate of node %s: %w", node, err)
	}
	return encode(certificate, der), keyPEM, nil
}

// IssueTo issues a certificate and a key for a node, and writes them to a directory, with a copy of the authority's certificate: the files of
// LoadIdentity. Files that exist are replaced or refused; the same authority's certificate is left as it is.
func (a *Authority) IssueTo(dir, node string, now time.Time, valid time.Duration, replace bool) error {
	certificatePEM, keyPEM, err := a.Issue(node, now, valid)
	if err != nil {
		return err
	}
	files := []file{{NodeKeyFile, keyPEM, 0o600}, {NodeFile, certificatePEM, 0o644}}
	der, err := readPEM(filepath.Join(dir, AuthorityFile), certificate)
	if err != nil || !bytes.Equal(der, a.certificate.Raw) {
		files = append(files, file{AuthorityFile, encode(certificate, a.certificate.Raw), 0o644})
	}
	if err := writeFiles(dir, files, replace); err != nil {
		return fmt.Errorf("certificate of node %s: %w", node, err)
	}
	return nil
}

// Ends is when the authority's certificate ends, and with it each that it has issued.
func (a *Authority) Ends() time.Time { return a.certificate.NotAfter }

// CheckNode refuses names that are no DNS labels, which are what certificates can hold.
func CheckNode(node string) error {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789-"
	if node == "" || len(node) > 63 || strings.Trim(node, letters) != "" || strings.HasPrefix(node, "-") || strings.HasSuffix(node, "-") {
		return fmt.Errorf("node %q: a name has 1 to 63 of a to z, 0 to 9 and -, and no - at its ends", node)
	}
	return nil
}

func sign(template, parent *x509.Certificate, public ed25519.PublicKey, key ed25519.PrivateKey, now, until time.Time) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber, template.NotBefore, template.NotAfter = serial, now.Add(-clockTolerance), until
	return x509.CreateCertificate(rand.Reader, template, parent, public, key)
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func encodeKey(key ed25519.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	return encode(privateKey, der), err
}

// readPEM reads the first block of a file.
func readPEM(path, kind string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(data)
	if block == nil || block.Type != kind {
		return nil, fmt.Errorf("%s: it does not begin with a PEM block %s", path, kind)
	}
	return block.Bytes, nil
}
