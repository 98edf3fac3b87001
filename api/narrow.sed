# What controller-gen writes for quantities and times admits text from which Kubernetes' own types cannot be read, such as
# 1e1.5 or 00:00:00t: one object with that in it would end every watch of its kind. Times of conditions are among them.
s/\[eE\](\\+|-)?((\[0-9\]+(\\\.\[0-9\]\*)?)|(\\\.\[0-9\]+))/[eE](\\+|-)?[0-9]{1,2}/
s/^\( *\)format: date-time$/&\n\1pattern: ^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?(Z|[+-][01][0-9]:[0-5][0-9])$/
s/^\( *\)format: duration$/&\n\1minLength: 2\n\1pattern: ^-?(([0-9]{1,6}|1[0-9]{6}|2[0-4][0-9]{5})h)?([0-9]{1,2}m)?([0-9]{1,9}([.][0-9]{1,9})?(ns|us|µs|ms|s))?$/
