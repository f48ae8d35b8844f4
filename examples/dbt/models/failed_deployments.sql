SELECT service, env, ended, reason, recovery_s
FROM {{ source('ropewalk', 'deployments') }}
WHERE status IN ('failed', 'revert')
