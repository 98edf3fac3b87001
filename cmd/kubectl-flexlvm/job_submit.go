package main

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/flexlvm/flexlvm/internal/recipe"
	"github.com/flexlvm/flexlvm/internal/version"
	"github.com/flexlvm/flexlvm/pkg/jobvolume"
)

type submitOptions struct {
	recipe.Settings
	size   string
	mode   string
	config string
	show   bool
}

func submitCommand(s *session) *cobra.Command {
	o := submitOptions{}
	cmd := &cobra.Command{
		Use:   "submit --name NAME --workers N --image IMAGE [flags] -- COMMAND [ARGUMENT...]",
		Short: "Start a job whose workers share one volume, or have one each",
		Long: `submit starts a job of several workers, as an Indexed Job of Kubernetes, and creates one claim
for it: a volume that is mounted in every worker, whose size is the size per worker times the
number of workers. The claim is deleted with the job; the StorageClass determines whether its
files are deleted, too. With --volume-per-worker, each worker has its own volume instead, of any
StorageClass, including cloud disks and local volumes. See docs/jobs.md.

Run again with the same settings, it creates what an earlier run could not, and starts the job. An
existing job of that name with other settings is not changed; submit prints the differences. A claim
job-NAME that is not the job's own is refused.`,
		Example: `  kubectl flexlvm job submit --name count --workers 4 --image busybox:1.36 -- sh -c 'cd $(/flexlvm/flexlvm-job worker-dir) && date >part'`,
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(cmd, s, args) },
	}
	f := cmd.Flags()
	f.SortFlags = false
	f.StringVar(&o.Name, "name", "", "name of the job; its claim is called job-NAME")
	f.IntVar(&o.Workers, "workers", 1, "number of workers")
	f.StringVar(&o.Image, "image", "", "image that the workers run")
	f.StringVar(&o.Class, "storage-class", "flexlvm-nfs", "StorageClass of the volume; empty: the cluster's default")
	f.StringVar(&o.size, "size-per-worker", "1Gi", "size of the volume for each worker; 0: no persistent storage")
	f.StringVar(&o.mode, "access-mode", string(corev1.ReadWriteMany), "ReadWriteMany, ReadWriteOnce or ReadOnlyMany; with --volume-per-worker ReadWriteOnce by default, or ReadWriteOncePod")
	f.StringVar(&o.config, "config", "", "file that sets the three flags above by Twister2's names (docs/jobs.md); the flags take precedence")
	f.BoolVar(&o.VolumePerWorker, "volume-per-worker", false, "give each worker its own volume, of any StorageClass, instead of a shared one; it is deleted with the worker's pod")
	f.StringVar(&o.MountPath, "mount-path", jobvolume.DefaultDir, "mount path of the volume in every worker")
	f.IntVar(&o.KeepSeconds, "keep-seconds", -1, "how long to keep the job and its claim after the job has finished; negative: until the job is deleted")
	f.StringVar(&o.ToolsImage, "tools-image", "localhost/flexlvm/flexlvm:"+version.String, "image with flexlvm-job, which the workers then find at "+recipe.ToolsDir+"/flexlvm-job; empty: none")
	f.BoolVar(&o.show, "print", false, "only print the manifests of the job and its claim, without owner reference, and start nothing")
	modes := []string{string(corev1.ReadWriteMany), string(corev1.ReadWriteOnce), string(corev1.ReadOnlyMany), string(corev1.ReadWriteOncePod)}
	_ = cmd.RegisterFlagCompletionFunc("access-mode", cobra.FixedCompletions(modes, cobra.ShellCompDirectiveNoFileComp)) // as in outputFlag
	return cmd
}

func (o *submitOptions) run(cmd *cobra.Command, s *session, args []string) error {
	o.Command, o.AccessMode = args, corev1.PersistentVolumeAccessMode(o.mode)
	var err error
	if o.SizePerWorker, err = resource.ParseQuantity(o.size); err != nil {
		return fmt.Errorf("--size-per-worker %q: %w; give a size such as 10Gi, or 0", o.size, err)
	}
	if o.config != "" {
		if err := o.ReadConfig(o.config, given(cmd)...); err != nil {
			return err
		}
	}
	if o.VolumePerWorker && o.AccessMode == corev1.ReadWriteMany && !cmd.Flags().Changed("access-mode") {
		o.AccessMode = corev1.ReadWriteOnce
	}
	if o.show {
		o.Namespace = s.overrides.Context.Namespace
		return o.print(cmd.OutOrStdout())
	}
	if o.Namespace, err = s.namespace(); err != nil {
		return err
	}
	kube, err := s.kubernetes()
	if err != nil {
		return err
	}
	job, err := recipe.Start(cmd.Context(), kube, o.Settings)
	if err != nil {
		return withAdvice(err)
	}
	fmt.Fprintln(cmd.OutOrStdout(), submitted(job))
	return nil
}

// submitted returns the message about a job that Start has returned.
func submitted(job *batchv1.Job) string {
	if how, ended := recipe.Ended(job); ended {
		again := "delete it"
		if first := recipe.BeforeDeletion(job); first != "" {
			again = fmt.Sprintf("first %s, and then %s", first, again)
		}
		return fmt.Sprintf("job.batch/%s in namespace %s was not started: it already exists with the same settings and has ended (%s); to run it again, %s", job.Name, job.Namespace, how, again)
	}
	if job.Spec.Suspend != nil && *job.Spec.Suspend {
		return fmt.Sprintf(`job.batch/%s in namespace %s exists and is suspended, so no worker runs; unless something else resumes it, kubectl patch job %[1]s -n %[2]s -p '{"spec":{"suspend":false}}' does`, job.Name, job.Namespace)
	}
	return fmt.Sprintf("job.batch/%s started in namespace %s", job.Name, job.Namespace)
}

// given returns the configuration file's names of the settings that the user gave as flags.
func given(cmd *cobra.Command) (names []string) {
	for flag, name := range map[string]string{
		"storage-class": recipe.ConfigClass, "size-per-worker": recipe.ConfigSize, "access-mode": recipe.ConfigMode,
	} {
		if cmd.Flags().Changed(flag) {
			names = append(names, name)
		}
	}
	return names
}

// print prints the objects, for people and for tools that modify them.
func (o *submitOptions) print(to io.Writer) error {
	if err := o.Check(); err != nil {
		return err
	}
	job := o.Job()
	objects := []client.Object{job}
	if claim := o.Claim(job); claim != nil {
		claim.OwnerReferences = nil
		objects = append(objects, claim)
	}
	return printObjects(to, objects...)
}
