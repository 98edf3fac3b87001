// Command submit starts a distributed job whose workers share one volume.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/flexlvm/flexlvm/internal/recipe"
	"github.com/flexlvm/flexlvm/internal/version"
	"github.com/flexlvm/flexlvm/pkg/jobvolume"
)

const long = `submit starts a job of several workers, as an Indexed Job of Kubernetes, and makes
one claim for it: a volume that is mounted in every worker, whose size is that of
a worker times the workers. The claim belongs to the job and goes with it; whether
its files go too is for the StorageClass to say. docs/jobs.md explains it all.

It uses the kubeconfig that kubectl uses. Called again with the same settings, it
makes what an earlier call could not; a job of that name with other settings is left
as it is, and submit says in what they differ.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "submit:", err)
		os.Exit(1)
	}
}

type options struct {
	recipe.Settings
	kubeconfig string
	size       string
	mode       string
	show       bool
}

func command() *cobra.Command {
	o := options{}
	cmd := &cobra.Command{
		Use:           "submit --name NAME --workers N --image IMAGE [flags] -- COMMAND [ARGUMENT...]",
		Short:         "Start a job whose workers share one volume",
		Long:          long,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          o.run,
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.Name, "name", "", "name of the job; its claim is called job-NAME")
	f.IntVar(&o.Workers, "workers", 1, "how many workers there are")
	f.StringVar(&o.Image, "image", "", "image that the workers run")
	f.StringVar(&o.Class, "storage-class", "flexlvm-nfs", "StorageClass of the volume; empty: the cluster's default")
	f.StringVar(&o.size, "size-per-worker", "1Gi", "size of the volume for each worker; 0: no persistent storage")
	f.StringVar(&o.mode, "access-mode", string(corev1.ReadWriteMany), "ReadWriteMany, ReadWriteOnce or ReadOnlyMany")
	f.StringVar(&o.MountPath, "mount-path", jobvolume.DefaultDir, "where the volume is mounted in every worker")
	f.IntVar(&o.KeepSeconds, "keep-seconds", -1, "how long the job and its claim stay once it has finished; less than 0: until the job is deleted")
	f.StringVar(&o.ToolsImage, "tools-image", "localhost/flexlvm/flexlvm:"+version.String, "image that brings flexlvm-job to the workers, as "+recipe.ToolsDir+"/flexlvm-job; empty: none")
	f.StringVarP(&o.Namespace, "namespace", "n", "", "namespace of the job (default: that of the kubeconfig)")
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "file that says how to reach the API server (default: as kubectl)")
	f.BoolVar(&o.show, "print", false, "print the job and its claim, without an owner, and start nothing")
	return cmd
}

func (o *options) run(cmd *cobra.Command, args []string) error {
	o.Command, o.AccessMode = args, corev1.PersistentVolumeAccessMode(o.mode)
	var err error
	if o.SizePerWorker, err = resource.ParseQuantity(o.size); err != nil {
		return fmt.Errorf("--size-per-worker %q: %w; give a size such as 10Gi, or 0", o.size, err)
	}
	if o.show {
		return o.print(cmd)
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	from := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil)
	if o.Namespace == "" {
		if o.Namespace, _, err = from.Namespace(); err != nil {
			return fmt.Errorf("read the kubeconfig: %w; name it with --kubeconfig", err)
		}
	}
	config, err := from.ClientConfig()
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w; name it with --kubeconfig", err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make the API client: %w", err)
	}
	job, err := recipe.Start(cmd.Context(), client, o.Settings)
	if err != nil {
		return err
	}
	if how, ended := recipe.Ended(job); ended {
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "job.batch/%s in namespace %s is not started: it is there with the same settings and has ended (%s); delete it to run it again\n", job.Name, job.Namespace, how)
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "job.batch/%s started in namespace %s\n", job.Name, job.Namespace)
	return err
}

// print shows the objects for people, and for tools that put their own hand to them.
func (o *options) print(cmd *cobra.Command) error {
	if err := o.Check(); err != nil {
		return err
	}
	job := o.Job()
	objects := []any{job}
	if claim := o.Claim(job); claim != nil {
		claim.OwnerReferences = nil
		objects = append(objects, claim)
	}
	for _, object := range objects {
		text, err := yaml.Marshal(object)
		if err != nil {
			return fmt.Errorf("print the job: %w", err)
		}
		if _, err := fmt.Fprintf(cmd.OutOrStdout(), "---\n%s", text); err != nil {
			return err
		}
	}
	return nil
}
