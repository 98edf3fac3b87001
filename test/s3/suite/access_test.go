//go:build s3

package suite

import (
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flexlvm/flexlvm/test/s3"
)

func TestCredentials(t *testing.T) {
	secret := func(t *testing.T, files tree) string {
		dir := t.TempDir()
		for name, content := range files {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
		}
		return dir
	}
	t.Run("of a mounted Secret", func(t *testing.T) {
		b := newBed(t)
		b.put(tree{"a": "content"})
		b.env = nil
		dir := secret(t, tree{"awsAccessKeyID": server.Access + "\n", "awsSecretAccessKey": server.Secret + "\n"})
		o := b.fetch(b.url(""), "--credentials-dir", dir, "--region", s3.Region)
		require.Zero(t, o.code, o.stderr)
		require.Equal(t, tree{"a": "content"}, b.files())
	})
	t.Run("of a shared file", func(t *testing.T) {
		b := newBed(t)
		b.put(tree{"a": "content"})
		dir := secret(t, tree{"credentials": fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", server.Access, server.Secret)})
		b.env = []string{"AWS_SHARED_CREDENTIALS_FILE=" + filepath.Join(dir, "credentials")}
		o := b.fetch(b.url(""))
		require.Zero(t, o.code, o.stderr)
		require.Equal(t, tree{"a": "content"}, b.files())
	})
	t.Run("wrong secret", func(t *testing.T) {
		b := newBed(t)
		b.put(tree{"a": "content"})
		b.env = []string{"AWS_ACCESS_KEY_ID=" + server.Access, "AWS_SECRET_ACCESS_KEY=wrong-and-private"}
		b.refused(b.fetch(b.url("")), "credentials", "wrong-and-private")
	})
	t.Run("wrong key", func(t *testing.T) {
		b := newBed(t)
		b.put(tree{"a": "content"})
		b.env = []string{"AWS_ACCESS_KEY_ID=nobody", "AWS_SECRET_ACCESS_KEY=wrong-and-private"}
		b.refused(b.fetch(b.url("")), "credentials", "wrong-and-private")
	})
	t.Run("incomplete Secret", func(t *testing.T) {
		b := newBed(t)
		b.refused(b.fetch(b.url(""), "--credentials-dir", secret(t, tree{"awsAccessKeyID": "private"})), "awsSecretAccessKey", "private")
	})
}

// refused checks that a run failed permanently, left no files, and reported the word but nothing
// private.
func (b *bed) refused(o outcome, word, private string) {
	b.t.Helper()
	require.Equal(b.t, 1, o.code, o.stderr)
	require.Equal(b.t, "failed", o.result.State)
	require.False(b.t, o.result.Retryable)
	require.Contains(b.t, o.result.Message, word)
	require.NotContains(b.t, o.result.Message+o.stderr, private)
	require.Empty(b.t, b.files())
	require.False(b.t, b.complete())
}

func TestAnonymous(t *testing.T) {
	b := newBed(t)
	b.put(tree{"a": "content"})
	b.env = nil
	o := b.fetch(b.url(""), "--anonymous")
	require.Equal(t, 1, o.code, "it is not open to all: %s", o.stderr)

	client, err := server.Client()
	require.NoError(t, err)
	require.NoError(t, client.SetBucketPolicy(b.ctx, b.bucket, fmt.Sprintf(`{"Version":"2012-10-17","Statement":[{"Effect":"Allow",
		"Principal":"*","Action":["s3:GetObject","s3:ListBucket"],"Resource":["arn:aws:s3:::%[1]s","arn:aws:s3:::%[1]s/*"]}]}`, b.bucket)))
	o = b.fetch(b.url(""), "--anonymous")
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, tree{"a": "content"}, b.files())
}

func TestPrivateAuthority(t *testing.T) {
	b := newBed(t)
	b.put(tree{"a": "content"})
	secured := httptest.NewTLSServer(b.proxy)
	t.Cleanup(secured.Close)
	o := b.launch("--endpoint", secured.URL, "--attempts", "1", b.url(""), b.dest).wait()
	require.NotZero(t, o.code)
	require.Contains(t, o.result.Message, "certificate")

	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secured.Certificate().Raw}), 0o600))
	o = b.launch("--endpoint", secured.URL, "--ca-file", ca, b.url(""), b.dest).wait()
	require.Zero(t, o.code, o.stderr)
	require.Equal(t, tree{"a": "content"}, b.files())
}

func TestMissingBucket(t *testing.T) {
	b := newBed(t)
	o := b.fetch("s3://no-such-bucket/")
	require.Equal(t, 1, o.code, o.stderr)
	require.Contains(t, o.result.Message, "no-such-bucket")
	require.False(t, o.result.Retryable)
	require.False(t, b.complete())
}

func TestUsage(t *testing.T) {
	b := newBed(t)
	for _, args := range [][]string{
		{}, {"s3://bucket/"}, {"ftp://host/", b.dest}, {"--no-such-flag", "s3://bucket/", b.dest},
		{"--memory", "much", "s3://bucket/", b.dest}, {"--order", "random", "s3://bucket/", b.dest}, {"bucket/key", b.dest},
	} {
		o := b.launch(args...).wait()
		require.Equal(t, 2, o.code, "%q: %s", args, o.stderr)
		require.NotEmpty(t, o.stderr)
	}
}
