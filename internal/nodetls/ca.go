// Package nodetls is who the nodes of a cluster are to each other: a small certificate authority, and TLS configurations with which both
// sides of a connection show certificates of it. A certificate is for a node's name. Where a node is, its addresses, does not matter.
//
// It trusts the files that it is given, and nothing that a peer sends.
package nodetls

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// The files of an authority's directory.
const (
	AuthorityFile = "ca.pem"     // its certificate: every node has a copy
	authorityKey  = "ca-key.pem" // stays where certificates are issued
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
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	encoded, err := encodeKey(key)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	// The key first: a certificate without a key looks like the copy of a node.
	if err := writeNew(filepath.Join(dir, authorityKey), encoded, 0o600); err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	if err := writeNew(filepath.Join(dir, AuthorityFile), encode(certificate, der), 0o644); err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	return LoadAuthority(dir)
}

// writeNew writes a file that must not exist.
func writeNew(path string, data []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
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
	der, err = readPEM(filepath.Join(dir, authorityKey), privateKey)
	if err != nil {
		return nil, fmt.Errorf("authority: %w", err)
	}
	parsedKey, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("authority: %s: %w", filepath.Join(dir, authorityKey), err)
	}
	key, ok := parsedKey.(ed25519.PrivateKey)
	if !ok || !parsed.IsCA || !key.Public().(ed25519.PublicKey).Equal(parsed.PublicKey) {
		return nil, fmt.Errorf("authority: %s: %s and %s are not the two files of one authority", dir, AuthorityFile, authorityKey)
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
