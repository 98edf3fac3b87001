// Command release builds flexlvm's programs, its image and a release, with only Go: no container tool, no root, and
// no network except for pushing.
package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/spf13/cobra"
)

// options are the flags that the commands share.
type options struct {
	source  string
	version string
	name    string
	arches  []string
	built   string
	to      string
	// downloads is the base URL of releases, each of which is in a folder named after its version.
	downloads string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newRoot().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:           "release",
		Short:         "Build flexlvm's programs, its image and a release",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	f := cmd.PersistentFlags()
	f.StringVar(&o.source, "source", ".", "the project's folder")
	f.StringVar(&o.version, "version", "", "the release, such as v0.1.0")
	f.StringVar(&o.name, "name", "localhost/flexlvm/flexlvm", "what the image is called, without a tag")
	f.StringSliceVar(&o.arches, "arch", []string{runtime.GOARCH}, "the architectures")
	f.StringVar(&o.to, "to", "", "the file or the folder that is written")
	cmd.AddCommand(newPrograms(&o), newDocker(&o), newOCI(&o), newPush(), newRelease(&o))
	return cmd
}

func newPrograms(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "programs",
		Short: "Build the programs for one architecture into the folder --to",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(o.arches) != 1 {
				return fmt.Errorf("--arch %v: a folder holds the programs for one architecture", o.arches)
			}
			if err := source(o.source).build(cmd.Context(), o.version, o.arches[0], o.to); err != nil {
				return err
			}
			return source(o.source).buildPlugin(cmd.Context(), o.version, platform{runtime.GOOS, o.arches[0]}, o.to)
		},
	}
}

func newDocker(o *options) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Write the image for one architecture as `docker save` does, to be loaded into nodes",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(o.arches) != 1 {
				return fmt.Errorf("--arch %v: such an archive holds one architecture; write an OCI archive for several", o.arches)
			}
			ref, images, err := o.images(cmd.Context())
			if err != nil {
				return err
			}
			return writeDocker(o.to, ref, images[o.arches[0]])
		},
	}
	cmd.Flags().StringVar(&o.built, "programs", "", "a folder with the programs, instead of building them")
	return cmd
}

func newOCI(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "oci",
		Short: "Write the image for all architectures as an OCI archive, to be pushed",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ref, images, err := o.images(cmd.Context())
			if err != nil {
				return err
			}
			return writeOCI(o.to, ref, newIndex(images))
		},
	}
}

func newPush() *cobra.Command {
	return &cobra.Command{
		Use:   "push ARCHIVE IMAGE",
		Short: "Copy an OCI archive to a registry, and print the reference that pins it",
		Args:  cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			to, err := name.NewTag(args[1], name.StrictValidation)
			if err != nil {
				return err
			}
			pinned, err := push(cmd.Context(), args[0], to)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), pinned)
			return err
		},
	}
}

func newRelease(o *options) *cobra.Command {
	var keyFile string
	cmd := &cobra.Command{
		Use:   "release",
		Short: "Make a release in the new folder --to",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return o.release(cmd.Context(), keyFile) },
	}
	cmd.Flags().StringVar(&o.downloads, "downloads", downloads, "the URL below which the files of releases lie, each in a folder of its version; krew has the plugin from there")
	cmd.Flags().StringVar(&keyFile, "sign-key", "", "a file with the private key that signs the checksums; empty: they are not signed")
	return cmd
}

// images builds the programs and their image for each architecture.
func (o *options) images(ctx context.Context) (name.Tag, map[string]v1.Image, error) {
	ref, err := name.NewTag(o.name+":"+o.version, name.StrictValidation)
	if err != nil {
		return name.Tag{}, nil, fmt.Errorf("--name, --version: %w", err)
	}
	dir, err := os.MkdirTemp("", "flexlvm-programs-")
	if err != nil {
		return name.Tag{}, nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	images := map[string]v1.Image{}
	for _, arch := range o.arches {
		built := o.built
		if built == "" {
			built = filepath.Join(dir, arch)
			if err := source(o.source).build(ctx, o.version, arch, built); err != nil {
				return name.Tag{}, nil, err
			}
		}
		if images[arch], err = newImage(o.version, arch, built); err != nil {
			return name.Tag{}, nil, err
		}
	}
	return ref, images, nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
