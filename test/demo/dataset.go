package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/flexlvm/flexlvm/internal/replica"
	"github.com/flexlvm/flexlvm/test/s3"
)

// The dataset. dataset.yaml repeats these values.
const (
	s3Port      = 9000
	bucket      = "pictures"
	pictures    = 48
	pictureSize = 512 << 10
)

// load loads a dataset onto the node while an S3 server is running.
func load(ctx context.Context, s *stage) (err error) {
	store, err := s.cluster.StartS3(ctx, s3Port)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Stop()) }()
	if err := upload(ctx, store); err != nil {
		return err
	}
	s.say("A real S3 server runs beside the cluster. In its bucket are %d files of %d KiB and a list of their checksums.", pictures, pictureSize>>10)
	s.say("Its credentials become a Secret by way of standard input; nobody else gets to see them:\n")
	s.prompt("$", "kubectl create -f -")
	if err := s.feed(ctx, strings.NewReader(secret(store)), "create", "-f", "-"); err != nil {
		return err
	}
	if _, err := s.kubectl(ctx, "apply", "-f", "test/demo/dataset.yaml"); err != nil {
		return err
	}
	if err := watchLoad(ctx, s); err != nil {
		return err
	}
	if _, err := s.kubectl(ctx, "wait", "vm/pictures", "--for=jsonpath={.status.state}=Running", "--timeout=180s"); err != nil {
		return err
	}
	out, err := s.kubectl(ctx, "get", "vm")
	if err != nil {
		return err
	}
	want := fmt.Sprintf("pictures Running 1/1 100%% %[1]d/%[1]d", pictures+1)
	return expect(strings.Join(strings.Fields(out), " "), want, "all files are loaded")
}

// upload fills the bucket with files and a list of their checksums.
func upload(ctx context.Context, store *s3.Server) error {
	if err := store.MakeBucket(ctx, bucket, false); err != nil {
		return err
	}
	random := rand.NewChaCha8([32]byte{})
	var list bytes.Buffer
	for i := range pictures {
		body := make([]byte, pictureSize)
		_, _ = random.Read(body) // never fails
		key := fmt.Sprintf("cats/%02d.jpg", i+1)
		fmt.Fprintf(&list, "%x  %s\n", sha256.Sum256(body), key)
		if _, err := store.Put(ctx, bucket, key, body, true); err != nil {
			return err
		}
	}
	_, err := store.Put(ctx, bucket, "SHA256SUMS", list.Bytes(), true)
	return err
}

func secret(store *s3.Server) string {
	return fmt.Sprintf(`{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3-credentials"},
		"stringData": {"awsAccessKeyID": %q, "awsSecretAccessKey": %q}}`, store.Access, store.Secret)
}

// watchLoad shows the dataset twice while it is loading, and requires progress in between.
func watchLoad(ctx context.Context, s *stage) error {
	const more = 40 // percent, so that the second time is about halfway
	least := 1
	for range 2 {
		err := s.await(ctx, fmt.Sprintf("%d%% of the dataset are loaded", least), func() (bool, error) {
			out, err := s.quiet(ctx, "get", "vm", "pictures", "--no-headers")
			return percent(out) >= least, err
		})
		if err != nil {
			return err
		}
		out, err := s.kubectl(ctx, "get", "vm")
		if err != nil {
			return err
		}
		if err := expect(out, "Pending", "the dataset is not ready before all is there"); err != nil {
			return err
		}
		seen := percent(out)
		if seen < least || seen >= 100 {
			return fmt.Errorf("expected to see the dataset while it is loaded, from %d%% on: %d%%", least, seen)
		}
		least = seen + more
	}
	return nil
}

// percent returns the progress in a line of `kubectl get vm`, or 0 if it has none.
func percent(line string) int {
	for word := range strings.FieldsSeq(line) {
		if number, is := strings.CutSuffix(word, "%"); is {
			if n, err := strconv.Atoi(number); err == nil {
				return n
			}
		}
	}
	return 0
}

// read runs a job that uses the dataset after its source is gone.
func read(ctx context.Context, s *stage) error {
	s.say("The S3 server has ended. The data are on the node, and whoever needs them names this claim:\n")
	out, err := s.kubectl(ctx, "get", "pvc", "pictures-train")
	if err != nil {
		return err
	}
	if err := expect(out, " ROX ", "many pods may read the claim"); err != nil {
		return err
	}
	if _, err := s.kubectl(ctx, "apply", "-f", "test/demo/job.yaml"); err != nil {
		return err
	}
	if _, err := s.kubectl(ctx, "wait", "--for=condition=Complete", "job/check", "--timeout=180s"); err != nil {
		return err
	}
	out, err = s.kubectl(ctx, "logs", "job/check")
	if err != nil {
		return err
	}
	if err := expect(out, fmt.Sprintf("%d files are good", pictures), "the job has read all of it"); err != nil {
		return err
	}
	uid, err := s.quiet(ctx, "get", "vm", "pictures", "-o", "jsonpath={.metadata.uid}")
	if err != nil {
		return err
	}
	s.volumes["pictures"] = string(replica.VolumeName(replica.Hash("default", uid, "train")))
	return nil
}
