package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/flexlvm/flexlvm/internal/fetch"
	"github.com/flexlvm/flexlvm/internal/fetch/store"
)

// fetch fills a directory.
func (s *session) fetch(ctx context.Context, from, dest string) error {
	source, err := fetch.ParseSource(from)
	if err != nil {
		return usageError{err}
	}
	if source.Name = s.name; s.name != "" && !source.Single() {
		return usageError{fmt.Errorf("--name %q requires one object; give a source that neither ends in a slash nor has wildcards", s.name)}
	}
	if s.keepChanged && (s.sync || s.versions != "") {
		return usageError{errors.New("--keep-changed cannot be combined with --sync or --versions; leave it out")}
	}
	source.OrObject = s.orObject
	paths, err := readPaths(s.orderFile)
	if err != nil {
		return usageError{err}
	}
	config := fetch.Config{
		Source: source, Endpoint: s.access.Endpoint, Version: s.access.Version, Dest: dest, Index: s.index, Include: s.include, Exclude: s.exclude, Paths: s.paths, Elsewhere: s.elsewhere, Checksum: s.checksum, Sync: s.sync, KeepChanged: s.keepChanged,
		Parallel: s.parallel, Memory: s.memory, Bandwidth: s.bandwidth, Order: s.order, OrderPaths: paths,
		SkipSpaceCheck: !s.capacityCheck, Attempts: s.attempts, Stall: s.stall, Log: s.log,
	}
	if s.peers.wanted() {
		config, err = s.fromPeers(config)
	} else {
		s.resolveScheme(ctx)
		config.Store, err = fetch.OpenSource(ctx, source, s.access)
	}
	if err != nil {
		return err
	}
	if s.versions != "" {
		return s.outcome(fetch.RunVersions(ctx, s.versions, config, s.progress))
	}
	return s.outcome(fetch.Run(ctx, config, s.progress))
}

// resolveScheme adds the scheme to an endpoint that has none.
func (s *session) resolveScheme(ctx context.Context) {
	if note := s.access.ResolveScheme(ctx); note != "" {
		s.progress.Note(note)
		s.log.Warn(note)
	}
}

// outcome returns errRefused if objects were refused; an error of the run has precedence.
func (s *session) outcome(refused []fetch.Refusal, err error) error {
	if err == nil && s.progress.Refused() > 0 {
		return fmt.Errorf("%w: %d, of which the first ones are named above", errRefused, max(int64(len(refused)), s.progress.Refused()))
	}
	return err
}

// readPaths reads the file of --order-file; empty lines are skipped.
func readPaths(name string) ([]string, error) {
	if name == "" {
		return nil, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("open --order-file: %w", err)
	}
	defer func() { _ = file.Close() }()
	var paths []string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if line := strings.TrimSuffix(lines.Text(), "\r"); line != "" {
			paths = append(paths, line)
		}
	}
	return paths, lines.Err()
}

func putCommand() *cobra.Command {
	o, back := &options{}, false
	cmd := &cobra.Command{
		Use:   "put [flags] DIR URL",
		Short: "Upload a directory, and verify what the server has stored",
		Long: `put uploads all regular files of DIR, except .flexlvm, to keys below URL, such as
s3://bucket/prefix. Files that the target already has with the same content are
not uploaded again. Nothing is deleted at the target. Symbolic links are refused.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.runSession(cmd, func(ctx context.Context, s *session) error {
				s.resolveScheme(ctx)
				config, err := s.putConfig(args, back)
				if err != nil {
					return err
				}
				refused, err := fetch.Put(ctx, config, s.progress)
				return s.outcome(refused, err)
			})
		},
	}
	o.shared(cmd)
	backFlag(cmd, &back)
	return cmd
}

func backFlag(cmd *cobra.Command, back *bool) {
	cmd.Flags().BoolVar(back, "back", false, "URL is the source that DIR was fetched from: upload each file to the key that it was fetched from, and skip unchanged files")
}

func (s *session) putConfig(args []string, back bool) (fetch.PutConfig, error) {
	target, err := fetch.ParseSource(args[1])
	if err != nil {
		return fetch.PutConfig{}, usageError{err}
	}
	dir, err := s.currentVersion(args[0])
	if err != nil {
		return fetch.PutConfig{}, err
	}
	return fetch.PutConfig{Dir: dir, Target: target, Back: back, S3: s.access, Parallel: s.parallel, Memory: s.memory, Log: s.log}, nil
}

// currentVersion returns the directory with the current version of dir, or dir without --versions.
func (s *session) currentVersion(dir string) (string, error) {
	if s.versions == "" {
		return dir, nil
	}
	dir, err := fetch.CurrentVersion(s.versions, dir)
	var classified *store.Error // a usage error already is one
	if err != nil && !errors.As(err, &classified) {
		err = store.Failure(err, false)
	}
	return dir, err
}

func mirrorCommand() *cobra.Command {
	o, back, id, every := &options{}, false, "", 5*time.Second
	cmd := &cobra.Command{
		Use:   "mirror [flags] DIR URL",
		Short: "Upload changes in a directory continuously",
		Long: `mirror uploads the files that change in DIR to keys below URL, and verifies them,
until SIGTERM. Files that cannot be uploaded are reported in /progress and retried.
Nothing is deleted at the target.`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.runSession(cmd, func(ctx context.Context, s *session) error {
				s.resolveScheme(ctx)
				config, err := s.putConfig(args, back)
				if err != nil {
					return err
				}
				return fetch.Mirror(ctx, fetch.MirrorConfig{PutConfig: config, Every: every, ID: id}, s.progress)
			})
		},
	}
	o.shared(cmd)
	backFlag(cmd, &back)
	cmd.Flags().StringVar(&id, "id", "", "ID that /progress reports")
	cmd.Flags().DurationVar(&every, "every", every, "minimum interval between scans of DIR")
	return cmd
}

func prepareCommand() *cobra.Command {
	o := &options{}
	cmd := &cobra.Command{
		Use:   "prepare [flags] DEST",
		Short: "Create the directory DEST if needed, and check that it is writable",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.runSession(cmd, func(_ context.Context, s *session) error { return fetch.Prepare(args[0], s.progress) })
		},
	}
	o.shared(cmd)
	return cmd
}
