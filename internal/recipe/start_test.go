package recipe_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/flexlvm/flexlvm/internal/recipe"
)

// withUIDs gives every job a UID, as an API server does.
func withUIDs(client *fake.Clientset) {
	client.PrependReactor("create", "jobs", func(action clienttesting.Action) (bool, runtime.Object, error) {
		action.(clienttesting.CreateAction).GetObject().(*batchv1.Job).UID = types.UID("job-uid")
		return false, nil, nil
	})
}

// runs reports whether the job controller would create pods for the job.
func runs(t *testing.T, client *fake.Clientset) bool {
	t.Helper()
	job, err := client.BatchV1().Jobs("team").Get(t.Context(), "count", metav1.GetOptions{})
	require.NoError(t, err)
	return job.Spec.Suspend == nil || !*job.Spec.Suspend
}

// The pods of a job start when its claim exists. A call that is interrupted after any write is continued by the next.
func TestStart(t *testing.T) {
	for _, failing := range []string{"create persistentvolumeclaims", "patch jobs", ""} {
		client := fake.NewClientset()
		withUIDs(client)
		client.PrependReactor("*", "*", func(a clienttesting.Action) (bool, runtime.Object, error) {
			return a.GetVerb()+" "+a.GetResource().Resource == failing, nil, errors.New("away")
		})
		_, err := recipe.Start(t.Context(), client, settings())
		if failing != "" {
			require.ErrorContains(t, err, "away")
			require.ErrorContains(t, err, "again with the same settings")
			require.False(t, runs(t, client), failing)
		}
		failing = ""
		for range 2 {
			job, err := recipe.Start(t.Context(), client, settings())
			require.NoError(t, err)
			require.False(t, *job.Spec.Suspend)
			require.NotContains(t, job.Annotations, recipe.AnnotationStarting)
			require.True(t, runs(t, client))
		}
		claim, err := client.CoreV1().PersistentVolumeClaims("team").Get(t.Context(), "job-count", metav1.GetOptions{})
		require.NoError(t, err)
		require.Equal(t, types.UID("job-uid"), claim.OwnerReferences[0].UID)
	}
}

// The job controller writes the status of the job meanwhile.
func TestStartAfterConflicts(t *testing.T) {
	client, conflicts := fake.NewClientset(), 2
	withUIDs(client)
	client.PrependReactor("patch", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		conflicts--
		return conflicts >= 0, nil, apierrors.NewConflict(schema.GroupResource{Resource: "jobs"}, "count", errors.New("changed"))
	})
	_, err := recipe.Start(t.Context(), client, settings())
	require.NoError(t, err)
	require.True(t, runs(t, client))
}

// A job that a person has suspended stays suspended.
func TestStartOfASuspendedJob(t *testing.T) {
	client, suspend := fake.NewClientset(), true
	withUIDs(client)
	job, err := recipe.Start(t.Context(), client, settings())
	require.NoError(t, err)
	job.Spec.Suspend = &suspend
	_, err = client.BatchV1().Jobs("team").Update(t.Context(), job, metav1.UpdateOptions{})
	require.NoError(t, err)
	_, err = recipe.Start(t.Context(), client, settings())
	require.NoError(t, err)
	require.False(t, runs(t, client))
}

// A claim of the same name that is not the job's stays untouched: no job is created beside it.
func TestStartBesideTheClaimOfAnother(t *testing.T) {
	for name, tt := range map[string]struct {
		owners []metav1.OwnerReference
		advice string
	}{
		"made by hand, or kept from an earlier job": {advice: "would overwrite its files: give another --name"},
		"of an earlier job":                         {owners: []metav1.OwnerReference{{Kind: "Job", Name: "count", UID: "earlier"}}, advice: "wait until the claim is gone, too"},
		"of something else":                         {owners: []metav1.OwnerReference{{Kind: "Cluster", Name: "db", UID: "other"}}, advice: "would overwrite its files: give another --name"},
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "job-count", OwnerReferences: tt.owners}})
			withUIDs(client)
			_, err := recipe.Start(t.Context(), client, settings())
			require.ErrorContains(t, err, "claim team/job-count already exists and does not belong to this job")
			require.ErrorContains(t, err, tt.advice)
			require.NotContains(t, err.Error(), "delete it")
			jobs, err := client.BatchV1().Jobs("team").List(t.Context(), metav1.ListOptions{})
			require.NoError(t, err)
			require.Empty(t, jobs.Items)
		})
	}
}

// A claim that somebody creates after the check is not used either: the job stays suspended.
func TestStartBesideALaterClaimOfAnother(t *testing.T) {
	client := fake.NewClientset()
	withUIDs(client)
	client.PrependReactor("create", "jobs", func(clienttesting.Action) (bool, runtime.Object, error) {
		return false, nil, client.Tracker().Add(&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "job-count"}})
	})
	for range 2 {
		_, err := recipe.Start(t.Context(), client, settings())
		require.ErrorContains(t, err, "does not belong to this job")
		require.ErrorContains(t, err, "Job team/count stays suspended")
		require.False(t, runs(t, client))
	}
	require.NoError(t, client.CoreV1().PersistentVolumeClaims("team").Delete(t.Context(), "job-count", metav1.DeleteOptions{}))
	_, err := recipe.Start(t.Context(), client, settings())
	require.NoError(t, err)
	require.True(t, runs(t, client))
}
