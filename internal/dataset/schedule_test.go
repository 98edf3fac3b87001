package dataset

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	flexlvmv1 "github.com/flexlvm/flexlvm/api/v1"
	"github.com/flexlvm/flexlvm/internal/replica"
)

func TestSchedule(t *testing.T) {
	after := time.Date(2026, 3, 28, 12, 0, 0, 0, time.UTC) // in Europe clocks change the night after
	for name, c := range map[string]struct{ text, zone, want string }{
		"word":            {"true", "", "2026-03-28T12:05:00Z"},
		"VCK's word":      {"1", "", "2026-03-28T12:05:00Z"},
		"interval":        {"90m", "", "2026-03-28T13:30:00Z"},
		"every night":     {"30 3 * * *", "", "2026-03-29T03:30:00Z"},
		"working days":    {"0 22 * * MON-FRI", "", "2026-03-30T22:00:00Z"},
		"in steps":        {"*/20 * * * *", "", "2026-03-28T12:20:00Z"},
		"by its name":     {"@monthly", "", "2026-04-01T00:00:00Z"},
		"summer begins":   {"30 3 * * *", "Europe/Berlin", "2026-03-29T01:30:00Z"},
		"west":            {"0 20 * * *", "America/New_York", "2026-03-29T00:00:00Z"},
		"in UTC, in word": {"30 3 * * *", "UTC", "2026-03-29T03:30:00Z"},
	} {
		s, err := parseSchedule(c.text, c.zone)
		require.NoError(t, err, name)
		require.Equal(t, c.want, s.Next(after).UTC().Format(time.RFC3339), name)
	}
	for _, text := range []string{"", "false", "0"} {
		s, err := parseSchedule(text, "")
		require.NoError(t, err)
		require.Nil(t, s)
	}
}

func TestScheduleThatIsRefused(t *testing.T) {
	for message, c := range map[string]struct{ text, zone string }{
		`refresh "soon" has to be true, how often, such as 10m, or the five fields of a cron schedule`: {"soon", ""},
		`refresh "10" has to be true, how often`:                                                       {"10", ""},
		`refresh "500ms" has to be not less than 1s`:                                                   {"500ms", ""},
		`refresh "-1h" has to be not less than 1s`:                                                     {"-1h", ""},
		`such as "30 3 * * 1-5": expected exactly 5 fields, found 6`:                                   {"0 30 3 * * *", ""},
		`such as "30 3 * * 1-5": end of range (61) above maximum (59)`:                                 {"61 3 * * *", ""},
		`refresh "0 0 30 2 *" names a time that never comes`:                                           {"0 0 30 2 *", ""},
		`refresh "@every 1h" is an interval; write it alone, such as 1h`:                               {"@every 1h", ""},
		`refresh "CRON_TZ=UTC 0 3 * * *" has a time zone; write that in refresh`:                       {"CRON_TZ=UTC 0 3 * * *", ""},
		`refresh "TZ=0" has a time zone`:                                                               {"TZ=0", ""},
		`refreshTimeZone "Berlin" is not known; write a name of the IANA`:                              {"0 3 * * *", "Berlin"},
		`refreshTimeZone "Local" is not known`:                                                         {"0 3 * * *", "Local"},
		`refreshTimeZone "../zone" is not known`:                                                       {"0 3 * * *", "../zone"},
		`refreshTimeZone "UTC" with refresh "1h": only a schedule by the clock`:                        {"1h", "UTC"},
		`refreshTimeZone "UTC" with refresh "": only a schedule by the clock`:                          {"", "UTC"},
	} {
		_, err := parseSchedule(c.text, c.zone)
		require.ErrorContains(t, err, message)
	}
}

// With a cron schedule a source is checked at the scheduled time, and not during visits for other reasons. A
// time that passed without a check is made up for once.
func TestRefreshByTheClock(t *testing.T) {
	s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["refresh"] = 1, "30 3 * * *" })
	r := s.holding(0, "one")
	r.Claim.CreationTimestamp = metav1.NewTime(now)
	night := time.Date(now.Year(), now.Month(), now.Day()+1, 3, 30, 0, 0, time.UTC)
	args := func(a Action) []string { return a.Object.(*batchv1.Job).Spec.Template.Spec.Containers[0].Args }

	s.Now = night.Add(-2 * time.Hour)
	s.requirePlan()
	r.Job = nil // as if somebody had deleted it
	s.requirePlan()
	r.Claim.Annotations[annotationLoaded] = `{"state":"complete","contents":"one","oldVersions":1}`
	out := s.requirePlan("create job v-a-0")
	require.NotContains(t, args(out.Actions[0]), "--sync", "it only removes old versions")
	r.goes(out.Actions[0], night.Add(time.Minute), batchv1.JobComplete, `{"state":"complete","contents":"one"}`)
	s.Now = night.Add(time.Minute)
	accept(t, Outcome{Actions: s.plan2(t).Actions[:1]})
	s.requirePlan("delete job v-a-0") // the scheduled time has passed meanwhile

	s.Now = night.Add(time.Hour)
	r.Job = nil
	out = s.requirePlan("create job v-a-0")
	require.Contains(t, args(out.Actions[0]), "--sync")
	s.Now = s.Now.Add(time.Minute)
	r.goes(out.Actions[0], s.Now, batchv1.JobComplete, `{"state":"complete","contents":"two"}`)
	accept(t, Outcome{Actions: s.plan2(t).Actions[:1]})
	s.requirePlan()
	s.Now = night.Add(24*time.Hour - time.Second)
	s.requirePlan()
	s.Now = night.Add(24 * time.Hour)
	s.requirePlan("delete job v-a-0")
}

// A time from a clock that was ahead, such as the Job controller's, does not delay refreshes until that time.
func TestRefreshAfterAClockThatWasAhead(t *testing.T) {
	const ahead = 24 * time.Hour
	made := func(r *Replica, at time.Time) { r.Job.Annotations[annotationMade] = at.Format(time.RFC3339) }
	begin := func(t *testing.T, refresh string, ended time.Time) (*stage, *Replica) {
		s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["refresh"] = 1, flexlvmv1.OptionValue(refresh) })
		r := s.holding(0, "one")
		r.goes(Action{Object: s.task(0, r.Claim).visit(true)}, ended, batchv1.JobComplete, "{}")
		made(r, now.Add(-time.Minute))
		accept(t, s.requirePlan("annotate claim v-a-0"))
		return s, r
	}
	t.Run("on demand", func(t *testing.T) {
		s, _ := begin(t, "720h", now.Add(ahead))
		s.Owner.Annotations = map[string]string{replica.AnnotationRefresh: "1"}
		s.requirePlan("delete job v-a-0")
	})
	t.Run("in intervals", func(t *testing.T) {
		s, r := begin(t, "10m", now.Add(ahead))
		require.Equal(t, now.Add(-time.Minute), s.requirePlan().Status.Nodes[0].RefreshedAt.Time, "from when its Job was made")
		s.Now = now.Add(9 * time.Minute)
		s.requirePlan("delete job v-a-0")
		r.Job = nil
		s.requirePlan("create job v-a-0")
	})
	t.Run("by the clock, and it is written down", func(t *testing.T) {
		s, r := begin(t, "0 3 * * *", now)
		r.Job = nil
		r.Claim.CreationTimestamp = metav1.NewTime(now.Add(-ahead))
		r.Claim.Annotations[annotationRefreshedAt] = now.Add(ahead).Format(time.RFC3339)
		s.requirePlan("create job v-a-0")
	})
	t.Run("by less than clocks differ", func(t *testing.T) {
		s, r := begin(t, "10m", now.Add(maxLag))
		made(r, now.Add(-ahead))
		s.requirePlan()
	})
	// The Job was created while the clock was ahead.
	t.Run("its beginning, too", func(t *testing.T) {
		s, r := begin(t, "10m", now.Add(ahead))
		delete(r.Claim.Annotations, annotationVisit) // as if its end were observed only now
		made(r, now.Add(ahead-time.Minute))
		accept(t, s.requirePlan("annotate claim v-a-0"))
		require.Equal(t, now, s.requirePlan().Status.Nodes[0].RefreshedAt.Time, "from when its end was seen")
		s.Now = now.Add(10*time.Minute - time.Second)
		s.requirePlan()
		s.Now = now.Add(10 * time.Minute)
		s.requirePlan("delete job v-a-0")
		r.Job = nil
		s.requirePlan("create job v-a-0")
	})
	t.Run("all that is known", func(t *testing.T) {
		s, r := begin(t, "720h", now.Add(ahead))
		made(r, now.Add(ahead))
		r.Claim.CreationTimestamp = metav1.NewTime(now.Add(ahead))
		r.Claim.Annotations[annotationRefreshedAt] = now.Add(ahead).Format(time.RFC3339)
		s.requirePlan("delete job v-a-0")
		r.Job = nil
		s.requirePlan("create job v-a-0")
	})
	t.Run("a loader that never ran", func(t *testing.T) {
		s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
		r := s.ended(0, batchv1.JobFailed, "")
		r.Pod = nil
		made(r, now.Add(ahead))
		r.Job.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(ahead))
		s.requirePlan("delete job v-a-0")
		made(r, now.Add(longAhead))
		s.requirePlan()
	})
}

// If the clocks of this controller and of the control plane differ permanently, an action that is due some time
// after the end of a Job is due that long after this controller created the Job, and not in each pass.
func TestJobsWhileClocksDiffer(t *testing.T) {
	for _, ahead := range []time.Duration{-24 * time.Hour, -15 * time.Minute, 15 * time.Minute, 24 * time.Hour} {
		end := func(r *Replica, a Action, how batchv1.JobConditionType, result string) {
			theirs := now.Add(ahead)
			r.goes(a, theirs, how, result)
			r.Job.CreationTimestamp = metav1.NewTime(theirs)
		}
		dueAfter := func(s *stage, pause time.Duration) {
			s.requirePlan()
			s.Now = now.Add(pause - time.Second)
			s.requirePlan()
			s.Now = now.Add(pause)
			s.requirePlan("delete job v-a-0")
		}
		t.Run(fmt.Sprintf("sweep, %s ahead", ahead), func(t *testing.T) {
			s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
			r := s.holding(0, "two")
			const holds = `{"state":"complete","contents":"two","oldVersions":1}`
			r.Claim.Annotations[annotationLoaded], r.Job = holds, nil
			end(r, s.requirePlan("create job v-a-0").Actions[0], batchv1.JobComplete, holds)
			accept(t, s.requirePlan("annotate claim v-a-0"))
			dueAfter(s, betweenSweeps)
		})
		t.Run(fmt.Sprintf("refresh, %s ahead", ahead), func(t *testing.T) {
			s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas, v.Options["refresh"] = 1, "10m" })
			r := s.holding(0, "one")
			r.Job = nil
			end(r, s.requirePlan("create job v-a-0").Actions[0], batchv1.JobComplete, `{"state":"complete","contents":"one"}`)
			accept(t, s.requirePlan("annotate claim v-a-0"))
			dueAfter(s, 10*time.Minute)
		})
		t.Run(fmt.Sprintf("loader that never ran, %s ahead", ahead), func(t *testing.T) {
			s := newStage(t, func(v *flexlvmv1.VolumeConfig) { v.Replicas = 1 })
			r := s.claimed(0)
			end(r, s.requirePlan("create job v-a-0").Actions[0], batchv1.JobFailed, "")
			r.Pod = nil
			dueAfter(s, betweenVisits)
		})
	}
}
